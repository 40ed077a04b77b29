"""LangGraph's own conformance suite, run over our saver through its async and through its sync methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from langgraph_turncheckpoint import TurnCheckpointSaver

pytest.importorskip("langgraph.checkpoint.conformance", reason="langgraph-checkpoint-conformance is not installed")

from langgraph.checkpoint.conformance import checkpointer_test, validate

#: What the suite must find, so that it cannot report FULL because something is missing.
CAPABILITIES = {
    "put",
    "put_writes",
    "get_tuple",
    "list",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
}


class SyncMethods(BaseCheckpointSaver[Any]):
    """Answers the suite, which only calls async methods, with the sync ones of the saver under test."""

    def __init__(self, saver: TurnCheckpointSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in LangGraph's interface
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self._saver.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._saver.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._saver.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self._saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._saver.prune(thread_ids, strategy=strategy)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_the_conformance_suite_finds_and_passes_everything(tmp_path: Path, colour: str) -> None:
    """FULL, with all eight capabilities detected and not one test failed, in either colour."""
    opened = 0

    @checkpointer_test(name=f"TurnCheckpointSaver {colour}")
    async def under_test() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        nonlocal opened
        opened += 1
        with TurnCheckpointSaver(tmp_path / str(opened)) as saver:
            yield saver if colour == "async" else SyncMethods(saver)

    report = await validate(under_test)
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert {name for name, result in report.results.items() if result.detected} == CAPABILITIES
    assert {name for name, result in report.results.items() if result.passed} == CAPABILITIES
    assert all(result.tests_passed > 0 for result in report.results.values())
    assert report.conformance_level() == "FULL"
