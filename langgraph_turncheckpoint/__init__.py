"""LangGraph checkpoints that survive crashes, stale writers and long histories."""

from . import errors
from ._upkeep import Stats
from ._verify import Finding
from .errors import (
    DamagedCheckpointError,
    DamageWarning,
    InvalidIdError,
    LossyTextWarning,
    RefusedValueError,
    StaleTurnError,
    StorageError,
    ThreadClosedError,
    TurnCheckpointError,
    TurnCheckpointWarning,
    UnknownFormatError,
    UnresolvedTypeWarning,
    UnserializableValueError,
)
from .saver import TurnCheckpointSaver

__all__ = [
    "DamageWarning",
    "DamagedCheckpointError",
    "Finding",
    "InvalidIdError",
    "LossyTextWarning",
    "RefusedValueError",
    "StaleTurnError",
    "Stats",
    "StorageError",
    "ThreadClosedError",
    "TurnCheckpointError",
    "TurnCheckpointSaver",
    "TurnCheckpointWarning",
    "UnknownFormatError",
    "UnresolvedTypeWarning",
    "UnserializableValueError",
    "errors",
]
__version__ = "0.1.0"
