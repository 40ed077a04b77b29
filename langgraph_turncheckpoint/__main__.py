"""The entry point of the `turncheckpoint` command: it finds out whether its toolkit is installed."""

from __future__ import annotations

import sys

#: What the extra `cli` brings; the library itself never imports them.
_TOOLKITS = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command, or say how to install it."""
    try:
        from .cli import app  # noqa: PLC0415 - needs an extra
    except KeyboardInterrupt:
        print("turncheckpoint: stopped; nothing has begun", file=sys.stderr)  # noqa: T201
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _TOOLKITS:
            raise
        print(  # noqa: T201 - the toolkit that would print is what is missing
            f"turncheckpoint: the command needs {error.name}, which the library does not install.\n"
            'Install it with: pip install "langgraph-turncheckpoint[cli]"',
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    app(prog_name="turncheckpoint")


if __name__ == "__main__":
    main()
