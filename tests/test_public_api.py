"""What the package promises to import: names, their order, and signatures as type checkers see them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

import langgraph_turncheckpoint
from langgraph_turncheckpoint import Inbox, SweepReport, TurnCheckpointSaver, errors

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig

    async def type_checkers_accept(saver: TurnCheckpointSaver, config: RunnableConfig) -> None:
        """Never runs; mypy checks it."""
        checkpointer: BaseCheckpointSaver[str] = saver
        with TurnCheckpointSaver("x", fsync=False, strict=True, redact=("key",)) as other, other.turn(config) as held:
            held["configurable"]
        async with saver, saver.turn(config) as held:
            await checkpointer.aget_tuple(held)
        ids: list[str] = saver.thread_ids() + await saver.athread_ids()
        sizes: int = saver.stats().size_bytes + (await saver.astats()).checkpoints
        texts: list[str] = [finding.path + finding.kind + finding.reason for finding in await saver.averify()]
        assert ids == texts == [str(sizes)]
        swept: SweepReport = saver.sweep(max_age=timedelta(days=30), dry_run=True)
        problems: tuple[str, ...] = swept.problems + (await saver.asweep(max_age=60.0)).threads
        kept = TurnCheckpointSaver("x", keep_last=10, max_age=timedelta(days=1))
        assert (problems, kept) == ((), saver)
        pictures: str = saver.timeline("1").svg + (await saver.atimeline("1", turns=3, texts=False)).save("x.svg")
        assert pictures
        saver.cancel_turn("1")
        saver.close_thread("1")
        saver.reopen_thread("1")
        inbox: Inbox = saver.inbox("1")
        waiting: list[BaseMessage] = inbox.pending() + await inbox.apending()
        count: int = inbox.acknowledge([inbox.post("text")]) + await inbox.aacknowledge([await inbox.apost(waiting[0])])
        assert count == inbox.clear() + await inbox.aclear()


def test_all_is_sorted_and_can_be_imported():
    names = langgraph_turncheckpoint.__all__
    assert names == sorted(names)
    assert all(hasattr(langgraph_turncheckpoint, name) for name in names)


def test_a_name_that_is_not_there_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'TurnCheckpointer'"):
        langgraph_turncheckpoint.TurnCheckpointer  # noqa: B018


def test_the_public_modules_are_attributes_of_the_package():
    code = "import langgraph_turncheckpoint as p; print(p.guard.__name__, p.telemetry.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "langgraph_turncheckpoint.guard langgraph_turncheckpoint.telemetry"


def test_importing_the_package_imports_nothing_until_it_is_asked_for():
    """So that the command can tell of a Ctrl-C while it imports, and an app pays for what it uses."""
    code = "import sys, langgraph_turncheckpoint as p; print([m for m in sys.modules if m.startswith(('lang', 'p.'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['langgraph_turncheckpoint']"


def test_every_error_and_warning_is_at_the_top_level():
    public = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert public <= set(langgraph_turncheckpoint.__all__)
    for name in public:
        assert issubclass(getattr(errors, name), (errors.TurnCheckpointError, errors.TurnCheckpointWarning))


def test_every_public_method_has_a_docstring():
    methods = {n: m for n, m in vars(TurnCheckpointSaver).items() if callable(m) and not n.startswith("_")}
    assert [name for name, method in methods.items() if not (method.__doc__ or "").strip()] == []


def test_every_method_that_touches_the_disk_has_an_async_twin_with_the_same_parameters():
    alone = {"close", "with_allowlist", "get_next_version", "inbox", "turn"}
    methods = {n: m for n, m in vars(TurnCheckpointSaver).items() if inspect.isfunction(m) and not n.startswith("_")}
    twins = {name for name in methods if name.startswith("a") and name[1:] in methods}
    assert {f"a{name}" for name in methods.keys() - twins - alone} == twins
    for twin in twins:
        assert (
            inspect.signature(methods[twin]).parameters.keys() == inspect.signature(methods[twin[1:]]).parameters.keys()
        )


@pytest.mark.parametrize("capability", ["put", "put_writes", "get_tuple", "list", "delete_thread", "delete_for_runs"])
def test_parameters_have_the_names_of_langgraph(capability):
    ours = inspect.signature(getattr(TurnCheckpointSaver, capability)).parameters
    assert list(ours) == list(inspect.signature(getattr(BaseCheckpointSaver, capability)).parameters)


def test_importing_the_package_loads_no_terminal_toolkit_and_no_agents():
    code = (
        "import sys, langgraph_turncheckpoint; "
        "print([m for m in ('rich', 'typer', 'langchain', 'langgraph.prebuilt', 'Crypto', 'sqlite3')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
