"""A PostgreSQL server of our own for the length of a run: made, started, stopped, removed. No saver lives here.

A keeper process makes the server and waits for the end of its standard input. However the run ends, also by a signal
that nobody can catch, that pipe closes, and the keeper stops the server and removes its directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

#: The role that owns everything in the server.
ROLE: Final = "benchmarks"

#: Where Debian and its relatives keep the programs, out of the way of `PATH`.
_PROGRAMS: Final = "/usr/lib/postgresql"

#: PostgreSQL refuses to run as root; accounts to run it as in that case.
_ACCOUNTS: Final = ("postgres", "nobody")

#: As `initdb` sets it up, with what decides about durability said once more, and reachable by its socket only.
_SETTINGS: Final = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "listen_addresses=")

_READY: Final = "ready"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05

#: A socket's path has 103 bytes on some systems; below this there is room for its name and that of its directory.
_DIRECTORY_LIMIT: Final = 60
_REPOSITORY: Final = Path(__file__).absolute().parents[2]


class NoClusterError(RuntimeError):
    """There can be no PostgreSQL server here; the message says why."""


def find_programs() -> Path:
    """The directory that has `initdb` and `postgres`, of the newest version if there are several.

    Raises:
        NoClusterError: There is none.
    """
    if on_path := shutil.which("initdb"):
        found = Path(on_path).resolve().parent
        if (found / "postgres").exists():
            return found
    installed = [path.parent for path in Path(_PROGRAMS).glob("*/bin/initdb") if (path.parent / "postgres").exists()]
    if not installed:
        raise NoClusterError("PostgreSQL is not installed: there is no initdb")
    return max(installed, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)])


@contextlib.contextmanager
def cluster(below: Path | None = None) -> Iterator[Path]:
    """A running server with a fresh cluster in a directory below `below`; gives that directory, which has the socket.

    Raises:
        NoClusterError: It cannot be had; nothing is left behind.
    """
    if os.name != "posix":
        raise NoClusterError("a private PostgreSQL server needs POSIX")
    programs, account = find_programs(), _account()
    where = Path(below or tempfile.gettempdir()).absolute()
    if len(str(where)) > _DIRECTORY_LIMIT:
        raise NoClusterError(f"{where} is too long a path for a server's socket below it")
    directory = Path(tempfile.mkdtemp(prefix="benchmarks-postgres-", dir=where))
    try:
        if account:
            shutil.chown(directory, account)
        # A session of its own: an interrupt from the keyboard reaches only the run, which then closes the pipe.
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.cluster", str(programs), str(directory), account],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    with keeper:
        assert keeper.stdout is not None
        said = keeper.stdout.readline().strip()
        if said == _READY:
            yield directory
        # Leaving the block closes the pipe and waits until the keeper has cleared up.
    if said != _READY:
        raise NoClusterError(said or "the server could not be started")


def _account() -> str:
    """Who runs the server: ourselves, or another account where we are root.

    Raises:
        NoClusterError: There is no such account.
    """
    if os.geteuid() != 0:
        return ""
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in _ACCOUNTS:
        if name in known:
            return name
    raise NoClusterError(f"PostgreSQL does not run as root, and there is no account {' or '.join(_ACCOUNTS)}")


# --- the keeper ---


def keep(programs: Path, directory: Path, account: str) -> None:
    """Run the server until standard input ends; clear up in any case."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server: subprocess.Popen[bytes] | None = None
    try:
        try:
            server = _start(programs, directory, account)
        except (OSError, NoClusterError) as error:
            _say(f"the server could not be started: {error}")
            return
        _say(_READY)
        sys.stdin.read()
    finally:
        if server is not None:
            _stop(server)
        shutil.rmtree(directory, ignore_errors=True)


def _start(programs: Path, directory: Path, account: str) -> subprocess.Popen[bytes]:
    identity: dict[str, Any] = {"cwd": directory, "stdin": subprocess.DEVNULL}
    if account:
        identity |= {"user": account, "group": _group_of(account), "extra_groups": []}
    data, log = directory / "data", directory / "log"
    made = subprocess.run(
        # Nothing of this is measured, so it need not wait for the disk.
        [programs / "initdb", "-D", data, "-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        capture_output=True,
        text=True,
        check=False,
        **identity,
    )
    if made.returncode != 0:
        raise NoClusterError(f"initdb: {_last_line(made.stderr)}")
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", directory, *settings], stdout=errors, stderr=errors, **identity
        )
    ready = [str(programs / "pg_isready"), "-q", "-h", str(directory), "-U", ROLE, "-d", "postgres"]
    try:
        _wait(lambda: server.poll() is not None or subprocess.run(ready, check=False).returncode == 0)
    except BaseException:
        _stop(server)
        raise
    if server.poll() is not None:
        raise NoClusterError(_last_line(log.read_text(errors="replace")))
    return server


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End it: orderly with its clients cut off, then at once, then by force."""
    for sign in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_SECONDS)
            return


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise NoClusterError(f"it does not answer after {_START_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)


def _group_of(account: str) -> int:
    import pwd

    return pwd.getpwnam(account).pw_gid


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Arguments: directory of the programs, directory of the cluster, account or nothing."""
    keep(Path(arguments[0]), Path(arguments[1]), arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
