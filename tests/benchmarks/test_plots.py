"""Plots are drawn from what a run has found, small enough to be committed, readable on a light and on a dark page."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.kept import Run, write_run
from tests.benchmarks.plots import _apart, draw
from tests.benchmarks.results import beside_peer
from tests.benchmarks.test_baseline import SETTING

LIMIT_BYTES = 60_000


def run_with_curves() -> Run:
    sizes = (5, 50, 500, 5000)
    times = {"ours": 1.1, "sqlite": 0.6, "postgres": 1.3, "objectstorage": 1.25, "inmemory": 0.1, "floor": 0.6}
    steps = {name: [(size, least * (1 + size / 500) / 1e3) for size in sizes] for name, least in times.items()}
    stored = {name: [(size, 1e5 * (1 + size**2)) for size in sizes] for name in ("ours", "sqlite")}
    rows = [
        beside_peer(key, "a turn", {"ours": seconds, "sqlite": 0.005, "inmemory": -0.0001})
        for key, seconds in (("added", 0.01), ("added-attach", 0.015))
    ]
    return Run(rows, SETTING, {"step-seconds": steps, "stored-bytes": stored})


def test_three_plots_are_drawn_without_a_background_of_their_own(tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    drawn = draw(run_with_curves(), tmp_path / "plots")

    assert [path.name for path in drawn] == ["step-time.png", "disk-use.png", "agent-turn.png"]
    for path in drawn:
        assert path.stat().st_size < LIMIT_BYTES
        with Image.open(path) as image:
            pixels = image.convert("RGBA")
        assert pixels.getpixel((0, 0))[3] == 0
        solid = {color[:3] for _, color in pixels.getcolors(1 << 24) if color[3] > 200}
        assert len(solid) > 1
        assert not any(max(color) < 64 or min(color) > 192 for color in solid)


def test_what_was_not_measured_is_not_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw(Run([], SETTING), tmp_path) == []


def test_without_matplotlib_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run.json", run_with_curves())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--from", str(tmp_path / "run.json"), "--plots", str(tmp_path / "plots")]) == 1
    assert "plots need matplotlib" in capsys.readouterr().err


def test_labels_that_would_overlap_are_moved_apart_in_order_and_stay_inside():
    placed = _apart([0.99, 0.98, 0.2, 0.97])
    assert max(placed) <= 1.0
    assert placed[0] > placed[1] > placed[3] > placed[2]
    assert min(high - low for high, low in zip(placed[:2], (placed[1], placed[3]), strict=True)) > 0.06
