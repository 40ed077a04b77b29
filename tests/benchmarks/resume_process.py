"""The process that is started to see how long it takes to the first model call of a resumed thread. Prints its times.

Nothing is imported here that an app with one saver would not import.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

#: What a person says next.
PROMPT = "and now?"


def main(arguments: Sequence[str]) -> None:
    """Arguments: contender or nothing, its module, its server or nothing, directory, thread, messages it must have."""
    begun = perf_counter()
    name, module, server, root, thread_id, messages = arguments

    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    framework = perf_counter()
    if module:
        importlib.import_module(module)
    imported = perf_counter()

    # What opens the saver for a benchmark is no part of an app.
    from tests.benchmarks.peers import named

    contender = named(name, server=Path(server) if server else None) if name else None
    ready = perf_counter()
    called: list[tuple[float, int]] = []

    def model(state: Any) -> Any:
        called.append((perf_counter(), len(state["messages"])))
        return {"messages": [AIMessage("done")]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    saver = None if contender is None else contender.open(Path(root))
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage(PROMPT)]}, {"configurable": {"thread_id": thread_id}})
    if contender is not None and saver is not None:
        contender.close(saver)
    at, seen = called[0]
    if seen != int(messages):
        raise RuntimeError(f"the model saw {seen} messages, not {messages}")
    foreign = ready - imported
    times = {"begun": begun, "import": imported - framework, "load": at - ready, "called": at - foreign}
    sys.stdout.write(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1:])
