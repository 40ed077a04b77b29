"""What differs between the LangGraph versions that are allowed, found by asking rather than by number."""

from __future__ import annotations

import ormsgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


def _keeps_data_of_lost_classes() -> bool:
    named = ormsgpack.Ext(2, ormsgpack.packb(("no_such_module", "Gone", {"x": 1})))
    return JsonPlusSerializer().loads_typed(("msgpack", ormsgpack.packb(named))) is not None


needs_data_of_lost_classes = pytest.mark.skipif(
    not _keeps_data_of_lost_classes(),
    reason="this LangGraph's own serializer gives None for a class it cannot find, where later ones give its data",
)
