"""The notebooks run, tell what they told when they were committed, and leave nothing behind."""

from __future__ import annotations

import copy
import json
import re

import pytest

from tests import notebooks
from tests.notebooks import NAMES, differences, normalised

pytest.importorskip("nbmake", reason="the `notebooks` extra is not installed")
pytestmark = pytest.mark.filterwarnings("default")

COMMITTED = {name: notebooks.read(notebooks.FOLDER / f"{name}.ipynb") for name in NAMES}


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_run_gives_the_committed_outputs_and_leaves_nothing(name, tmp_path):
    before = {path.name for path in notebooks.FOLDER.iterdir() if path.name != "__pycache__"}
    fresh = notebooks.run(name, tmp_path)
    assert [*differences(COMMITTED[name], fresh)] == []
    assert [cell["source"] for cell in COMMITTED[name]["cells"]] == [cell["source"] for cell in fresh["cells"]]
    assert {path.name for path in (tmp_path / "notebooks").iterdir()} == before
    assert [*(tmp_path / "tmp").iterdir()] == []
    assert [*(tmp_path / "runtime").glob("kernel-*")] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_runs_from_top_to_bottom_and_warns_of_nothing(name):
    cells = code_cells(COMMITTED[name])
    assert 10 <= len(COMMITTED[name]["cells"]) <= 15
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    kinds = {kind for cell in cells for kind, _ in normalised(cell["outputs"])}
    assert not kinds & {"error", "stderr"}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_nothing_of_the_machine_it_ran_on(name):
    for cell in code_cells(COMMITTED[name]):
        assert cell["metadata"] == {}
        for kind, text in normalised(cell["outputs"]):
            found = re.search(r"(?<![\w<.])/(?:[\w.-]+/)+[\w.-]+", text) if kind == "text/plain" else None
            assert found is None, f"{cell['id']}: {found}"
            assert not re.search(r"/(tmp|home|root|work|usr|opt|var)/|site-packages|0x[0-9a-f]{6}", text), cell["id"]
    assert set(COMMITTED[name]["metadata"]) == {"kernelspec", "language_info"}
    assert COMMITTED[name]["metadata"]["language_info"] == {"name": "python"}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_tells_how_to_use_a_real_model(name):
    assert "NOTEBOOK_MODEL" in json.dumps(COMMITTED[name]["cells"])


def test_times_and_ids_may_differ_and_nothing_else():
    def printed(*text):
        return {"cells": [{"id": "one", "outputs": [{"output_type": "stream", "name": "stdout", "text": [*text]}]}]}

    cell = printed("turn 1 2026-11-29 20:14:32   668 ms  model\n", "1f1ec317-d9d4-623e-bfff-77fbc64fd9ef")
    same = printed("turn 1 2027-01-02 03:04:05   <1 ms  model\n6f1ec317-d9d4-623e-bfff-77fbc64fd9ef")
    other = printed("turn 2 2026-11-29 20:14:32   668 ms  model\n1f1ec317-d9d4-623e-bfff-77fbc64fd9ef")
    assert [*differences(cell, same)] == []
    assert len([*differences(cell, other)]) == 1
    assert len([*differences(cell, {"cells": []})]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_answer_is_noticed_in_each_cell_that_prints(name):
    changed = copy.deepcopy(COMMITTED[name])
    texts = [o for cell in code_cells(changed) for o in cell["outputs"] if o["output_type"] == "stream"]
    assert texts
    for output in texts:
        output["text"] = [*output["text"], "and more"]
    assert [*differences(COMMITTED[name], changed)]


def test_a_notebook_that_fails_is_an_error_that_tells_the_cell(tmp_path, monkeypatch):
    folder = tmp_path / "broken"
    folder.mkdir()
    broken = copy.deepcopy(COMMITTED[NAMES[0]])
    broken["cells"] = code_cells(broken)[:1]
    broken["cells"][0]["source"] = "raise ValueError('so')"
    notebooks.write(folder / "broken.ipynb", broken)
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    with pytest.raises(notebooks.NotebookFailedError, match="ValueError"):
        notebooks.run("broken", tmp_path)
