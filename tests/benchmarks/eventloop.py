"""The row that times how long an event loop stands still while a large state is stored with `aput`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from statistics import median
from time import perf_counter
from typing import Any

from tests.benchmarks.bench import Bench, Grown
from tests.benchmarks.contenders import Contender, Saver
from tests.benchmarks.floors import fingerprint
from tests.benchmarks.results import Floor, Result, against_peer


async def longest_gap(operation: Awaitable[Any]) -> float:
    """The longest time, in seconds, that a task which only yields got no turn while `operation` ran."""
    worst = 0.0
    running = True

    async def tick() -> None:
        nonlocal worst
        last = perf_counter()
        while running:
            await asyncio.sleep(0)
            now = perf_counter()
            worst = max(worst, now - last)
            last = now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        await operation
        # A call that never let go of the loop shows only in the tick after it.
        await asyncio.sleep(0)
    finally:
        running = False
        await ticker
    return worst


def longest_block(bench: Bench) -> list[Result]:
    """The median, over several puts, of the longest gap."""
    size = bench.sizes.large
    p50 = {name: median(found) for name, found in asyncio.run(_gaps(bench)).items()}
    floor = Floor.timed(
        p50.pop("floor", None), f"the same gap while a thread takes the fingerprint of {size:,} messages"
    )
    return [
        against_peer(
            "loop",
            f"longest block of the event loop, aput of {size:,} messages",
            p50,
            times=1.0,
            target="not longer than InMemorySaver",
            peer="inmemory",
            floor=floor,
            note="the peer here is InMemorySaver; the others are AsyncSqliteSaver, AsyncPostgresSaver",
        )
    ]


async def _gaps(bench: Bench) -> dict[str, list[float]]:
    size, rounds = bench.sizes.large, bench.sizes.block_rounds
    messages = bench.following(size, rounds + 1)
    grown_to = bench.following(0, size)
    gaps: dict[str, list[float]] = {name: [] for name in (*(one.name for one in bench.contenders), "floor")}
    async with AsyncExitStack() as stack:
        held: list[tuple[Contender, Grown, Saver]] = []
        for contender in bench.contenders:
            grown = bench.grown(contender, size)
            opening = contender.open_async(grown.root, grown.state.config)
            opened, config = await stack.enter_async_context(opening)
            saver = grown.saver if grown.saver is not None else opened
            stack.enter_context(grown.state.run_under(config))
            await saver.aget_tuple(config)
            held.append((contender, grown, saver))
        gc.collect()
        for number in range(rounds + 1):
            shift = number % len(held)
            for contender, grown, saver in held[shift:] + held[:shift]:
                step = grown.state.add_message(saver, messages[number])
                await saver.aput_writes(step.config, step.writes, step.task_id, step.task_path)
                storing = saver.aput(step.config, step.checkpoint, step.metadata, step.new_versions)
                gap = await longest_gap(storing)
                if number > 0:
                    gaps[contender.name].append(gap)
            gaps["floor"].append(await longest_gap(asyncio.to_thread(fingerprint, grown_to)))
    return gaps
