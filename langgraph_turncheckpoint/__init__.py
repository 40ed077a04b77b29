"""LangGraph checkpoints that survive crashes, stale writers and long histories."""

from . import errors
from ._recovery import RecoveryReport
from ._turn_log import TurnRecord
from ._upkeep import Stats
from ._verify import Finding
from .errors import (
    DamagedCheckpointError,
    DamageWarning,
    InvalidIdError,
    InvalidMessageError,
    JournalWarning,
    LossyTextWarning,
    MissingExtraError,
    PolicyWarning,
    RefusedValueError,
    StaleTurnError,
    StorageError,
    ThreadBusyError,
    ThreadClosedError,
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
from .saver import TurnCheckpointSaver

__all__ = [
    "DamageWarning",
    "DamagedCheckpointError",
    "Finding",
    "Inbox",
    "InvalidIdError",
    "InvalidMessageError",
    "JournalWarning",
    "LossyTextWarning",
    "MissingExtraError",
    "PolicyWarning",
    "RecoveryReport",
    "RefusedValueError",
    "StaleTurnError",
    "Stats",
    "StorageError",
    "ThreadBusyError",
    "ThreadClosedError",
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
    "errors",
]
__version__ = "0.1.0"
