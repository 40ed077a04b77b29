"""The simulated disk: operations are recorded call by call, and states that a killed process or a loss of power may
leave are laid out and opened. `python -m tests.crash disk` runs it; tests run a shorter form.

For each operation the power fails before and behind each of its calls; or its process is killed there, another one
goes on and is acknowledged, and then the power fails; or, in a store without fsync, its process is killed there and in
the middle of each write. Broken versions of the store must be caught, each of them.
"""

from __future__ import annotations

import argparse
from collections import Counter

from tests.crash.disk.aftermath import PROMISES
from tests.crash.disk.campaign import Campaign, Finding, Size, Tally
from tests.crash.disk.invariants import INVARIANTS, name_of
from tests.crash.disk.races import races
from tests.crash.disk.saboteurs import SABOTEURS, Saboteur
from tests.crash.figures import Figure, zero

__all__ = ["add_arguments", "caught_by", "is_caught", "run"]

#: How much of everything while a broken version is to be caught.
_NARROW = Size(states=24, every=1, second=1_000_000, successors=1_000_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the lab takes."""
    parser.add_argument("--seed", type=int, default=0, help="the first history; odd ones have small buckets and logs")
    parser.add_argument("--histories", type=int, default=20, help="how many, in which power fails")
    parser.add_argument("--killed", type=int, default=14, help="how many without fsync, in which processes are killed")
    parser.add_argument("--operations", type=int, default=14, help="in each history")
    parser.add_argument("--states", type=int, default=24, help="at each crash point at most")
    parser.add_argument("--findings", type=int, default=50, help="the number that is enough")


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Run it."""
    power = Campaign(Size(states=options.states), stop_at=options.findings)
    killed = Campaign(Size(states=options.states), fsync=False, stop_at=options.findings)
    for campaign, count in ((power, options.histories), (killed, options.killed)):
        for seed in range(options.seed, options.seed + count):
            if not campaign.is_enough:
                campaign.history(seed, options.operations)
    findings = [str(finding) for campaign in (power, killed) for finding in campaign.tally.findings]
    meetings, mixed = 0, []
    for race in races():
        meetings += 1
        mixed += [f"two writers, the first stopped before call {race.call}: {wrong}" for wrong in race.wrong]
    caught = [saboteur for saboteur in SABOTEURS if is_caught(saboteur)]
    missed = [f"not caught: {saboteur.name}" for saboteur in SABOTEURS if saboteur not in caught]
    return _figures(power.tally, killed.tally, meetings, len(mixed), len(caught)), findings + mixed + missed


def caught_by(saboteur: Saboteur) -> list[Finding]:
    """What the lab finds in a broken version; it stops once that is enough."""
    with saboteur.sabotage():
        if saboteur.in_races:
            wrong = [wrong for race in races() for wrong in race.wrong]
            return [Finding("two writers do not mix", "a race", each, "") for each in wrong]
        size = _NARROW._replace(every=1_000_000, successors=1) if saboteur.in_successors else _NARROW
        campaign = Campaign(size, fsync=saboteur.fsync, stop_at=1000, wanted=saboteur.invariants)
        for seed in range(8):
            if not campaign.is_enough:
                campaign.history(seed, len(saboteur.script), saboteur.script, skipped=saboteur.skipped)
    return campaign.tally.findings


def is_caught(saboteur: Saboteur) -> bool:
    """Whether the promise that a broken version breaks is named."""
    return any(finding.invariant in saboteur.invariants for finding in caught_by(saboteur))


def _figures(power: Tally, killed: Tally, meetings: int, mixed: int, caught: int) -> list[Figure]:
    operations, broken = Counter(power.operations), power.broken() + killed.broken()
    operations.update(killed.operations)
    return [
        Figure("operations", len(operations)),
        Figure("histories of them", power.histories + killed.histories),
        Figure("operations in these", operations.total()),
        Figure("crash points", power.points + killed.points),
        Figure("crash states", power.states + killed.states),
        Figure("of them distinct, and opened", power.opened + killed.opened),
        Figure("second crashes", power.second),
        Figure("of these states, with a warning of torn bytes", power.warned + killed.warned),
        *(zero(f"broken: {name_of(invariant)}", broken.pop(name_of(invariant), 0)) for invariant in INVARIANTS),
        *(zero(f"broken: {name}", broken.pop(name, 0)) for name in PROMISES),
        Figure("meetings of two writers that nothing locks out", meetings),
        zero("broken: two writers do not mix", mixed),
        Figure("broken versions of the store that were caught", caught, len(SABOTEURS)),
    ]
