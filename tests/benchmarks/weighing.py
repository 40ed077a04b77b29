"""What a directory takes on disk. Nothing is timed or stored here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 512


class DiskUse(NamedTuple):
    """What a directory takes, directories themselves included, as `du` counts it."""

    size_bytes: int
    blocks_bytes: int
    files: int

    def without(self, other: DiskUse) -> DiskUse:
        """What is more than `other`."""
        return DiskUse(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def disk_use(root: Path) -> DiskUse:
    """Sum over `root` and everything below it."""
    size = blocks = files = 0
    for directory, _, names in os.walk(root):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            found = os.lstat(path)
            size += found.st_size
            blocks += found.st_blocks * _BLOCK_BYTES
        files += len(names)
    return DiskUse(size, blocks, files)
