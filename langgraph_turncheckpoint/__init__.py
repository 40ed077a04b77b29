"""LangGraph checkpoints that survive crashes, stale writers and long histories."""

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
