"""Runs the notebooks as a reader does, on a copy, and tells in which cells their outputs are not the committed ones.

`python -m tests.notebooks [NAME ...]` runs them and commits the new outputs to the files; `--check` only compares.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / "notebooks"
NAMES: Final = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
#: For one cell, in seconds.
CELL_TIMEOUT: Final = 120
#: Of a difference, at most so many lines of so many characters are shown.
LINES_SHOWN: Final = 40
LINE_LIMIT: Final = 300

#: What differs from one run to the next, and what stands for it in a comparison.
_VOLATILE: Final = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?"), "<time>"),
    (re.compile(r"( *(<|&lt;)?\b\d+(\.\d+)? (ms|s|min|h)\b)+"), "<duration>"),
)
#: In a picture every place follows from the lengths of times and durations.
_MARKUP: Final = frozenset({"image/svg+xml", "text/html"})
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")

Notebook = dict[str, Any]


class NotebookFailedError(Exception):
    """A cell raised, or took too long; the message is what nbmake reports."""


def read(path: Path) -> Notebook:
    """A notebook's file."""
    loaded: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def write(path: Path, notebook: Notebook) -> None:
    """Write a notebook in the form that Jupyter gives it."""
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def run(name: str, place: Path) -> Notebook:
    """A notebook with the outputs of a run in an empty directory.

    What it leaves in the directory for temporary files is in `place / "tmp"` afterwards, and what its kernels leave in
    Jupyter's in `place / "runtime"`.

    Raises:
        NotebookFailedError: It does not run to its end.
    """
    folder = place / "notebooks"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    own = {"TMPDIR": place / "tmp", "JUPYTER_RUNTIME_DIR": place / "runtime", "IPYTHONDIR": place / "ipython"}
    for directory in own.values():
        directory.mkdir()
    left_out = {"NOTEBOOK_MODEL", "PYTEST_ADDOPTS"}
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment |= {key: str(path) for key, path in own.items()}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", "--color=no"]
    command += ["--nbmake", f"--nbmake-timeout={CELL_TIMEOUT}", "--overwrite", f"{name}.ipynb"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotebookFailedError(f"{name}: {done.stdout}{done.stderr}")
    return tidied(read(folder / f"{name}.ipynb"))


def tidied(notebook: Notebook) -> Notebook:
    """The notebook without what a run adds that no reader wants: times of cells, the version of Python."""
    notebook["metadata"]["language_info"] = {"name": "python"}
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
    return notebook


def differences(committed: Notebook, fresh: Notebook) -> Iterator[str]:
    """Where the outputs differ otherwise than in times, ids and the places in pictures."""
    none: Notebook = {}
    for before, after in zip_longest(committed["cells"], fresh["cells"], fillvalue=none):
        was, now = (normalised(cell.get("outputs", ())) for cell in (before, after))
        if was != now:
            lines = unified_diff(_lines(was), _lines(now), "committed", "fresh", lineterm="", n=1)
            yield "\n".join([f"cell {before.get('id', after.get('id'))}:", *islice(lines, LINES_SHOWN)])


def normalised(outputs: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What is compared of a cell's outputs: the kind of each, and its text. What is printed is one text."""
    found: list[tuple[str, str]] = []
    for output in outputs:
        if output["output_type"] == "error":
            found.append(("error", f"{output['ename']}: {output['evalue']}"))
        elif output["output_type"] == "stream":
            kind, text = output["name"], _joined(output["text"])
            if found and found[-1][0] == kind:
                text = found.pop()[1] + text
            found.append((kind, text))
        else:
            found += [(kind, _joined(text)) for kind, text in sorted(output["data"].items())]
    return [(kind, _without_volatile(kind, text)) for kind, text in found]


def _without_volatile(kind: str, text: str) -> str:
    for pattern, placeholder in _VOLATILE:
        text = pattern.sub(placeholder, text)
    return _NUMBER.sub("0", text) if kind in _MARKUP else text


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _lines(outputs: Sequence[tuple[str, str]]) -> list[str]:
    return [f"[{kind}] {line[:LINE_LIMIT]}" for kind, text in outputs for line in text.splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run notebooks; the status is 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="without .ipynb; all by default")
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    options = parser.parse_args(arguments)
    status = 0
    for name in options.names or NAMES:
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as place:
            fresh = run(name, Path(place))
        found = [*differences(read(path), fresh)]
        sys.stdout.write("\n".join([f"{name}: {'differs' if found else 'the same'}", *found]) + "\n")
        if not options.check:
            write(path, fresh)
        elif found:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
