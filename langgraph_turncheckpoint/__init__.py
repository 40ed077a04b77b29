"""LangGraph checkpoints that survive crashes, stale writers and long histories. Modules are imported when something of
theirs is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors
    from ._recovery import RecoveryReport
    from ._repair_files import Repair
    from ._sweep import SweepReport
    from ._turn_log import TurnRecord
    from ._upkeep import Stats
    from ._verify import Finding
    from .display import Timeline
    from .errors import (
        CopyDiffersError,
        DamagedCheckpointError,
        DamageWarning,
        DeletedThreadError,
        ForeignFileError,
        InvalidIdError,
        InvalidMessageError,
        JournalWarning,
        LossyTextWarning,
        MigrationError,
        MissingExtraError,
        PlaceError,
        PolicyWarning,
        RefusedValueError,
        SourceChangedError,
        StaleTurnError,
        StorageError,
        ThreadBusyError,
        ThreadClosedError,
        ThreadConflictError,
        TurnCheckpointError,
        TurnCheckpointWarning,
        UnknownFormatError,
        UnknownPolicyError,
        UnresolvedCallError,
        UnresolvedTypeWarning,
        UnserializableValueError,
        UnsupportedGraphError,
        UnsupportedSaverError,
    )
    from .guard import TurnGuard
    from .inbox import Inbox
    from .migration import MigrationReport, amigrate, migrate
    from .saver import TurnCheckpointSaver

__all__ = [
    "CopyDiffersError",
    "DamageWarning",
    "DamagedCheckpointError",
    "DeletedThreadError",
    "Finding",
    "ForeignFileError",
    "Inbox",
    "InvalidIdError",
    "InvalidMessageError",
    "JournalWarning",
    "LossyTextWarning",
    "MigrationError",
    "MigrationReport",
    "MissingExtraError",
    "PlaceError",
    "PolicyWarning",
    "RecoveryReport",
    "RefusedValueError",
    "Repair",
    "SourceChangedError",
    "StaleTurnError",
    "Stats",
    "StorageError",
    "SweepReport",
    "ThreadBusyError",
    "ThreadClosedError",
    "ThreadConflictError",
    "Timeline",
    "TurnCheckpointError",
    "TurnCheckpointSaver",
    "TurnCheckpointWarning",
    "TurnGuard",
    "TurnRecord",
    "UnknownFormatError",
    "UnknownPolicyError",
    "UnresolvedCallError",
    "UnresolvedTypeWarning",
    "UnserializableValueError",
    "UnsupportedGraphError",
    "UnsupportedSaverError",
    "amigrate",
    "errors",
    "migrate",
]
__version__ = "0.1.0"

_MODULES = frozenset({"display", "errors", "guard", "inbox", "migration", "saver", "telemetry"})
#: Where public names live that are no errors.
_HOMES = {
    "Finding": "_verify",
    "Inbox": "inbox",
    "MigrationReport": "migration",
    "RecoveryReport": "_recovery",
    "Repair": "_repair_files",
    "Stats": "_upkeep",
    "SweepReport": "_sweep",
    "Timeline": "display",
    "TurnCheckpointSaver": "saver",
    "TurnGuard": "guard",
    "TurnRecord": "_turn_log",
    "amigrate": "migration",
    "migrate": "migration",
}


def __getattr__(name: str) -> Any:
    """A public name or module, when it is first asked for."""
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What is public, imported or not."""
    return sorted({*globals(), *__all__})
