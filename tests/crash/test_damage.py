"""S6, C50: the damage lab in short, and that it sees what it is there for."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest
from xxhash import xxh3_64_digest

from langgraph_turncheckpoint import _checkpoint_files, _files, _frames, _ledger, _records
from tests.crash import damage
from tests.crash.damaged_store import SERDES

#: Both stores together take about a quarter of a minute on one core.
STRIDE = 83


def found(*arguments):
    parser = ArgumentParser()
    damage.add_arguments(parser)
    return damage.run(parser.parse_args(arguments))


@pytest.mark.parametrize("store", SERDES)
def test_no_damage_is_silent_or_gives_a_wrong_value(store):
    figures, findings = found("--store", store, "--stride", str(STRIDE))
    assert findings == []
    assert all(figure.is_met for figure in figures)


def test_a_checksum_that_nobody_looks_at_is_noticed(monkeypatch):
    class Agreeable(bytes):
        def __ne__(self, other):
            return False

        def __eq__(self, other):
            return True

        __hash__ = bytes.__hash__

    monkeypatch.setattr(_records, "xxh3_64_digest", lambda data: Agreeable(xxh3_64_digest(data)))
    findings = found("--store", "plain", "--kind", "checkpoint with writes", "--stride", "5")[1]
    assert any("gives" in each for each in findings)


def test_damage_that_is_taken_for_a_torn_tail_is_noticed(monkeypatch):
    monkeypatch.setattr(_frames, "_is_torn", lambda tail: True)
    findings = found("--store", "plain", "--kind", "journal", "--stride", "7")[1]
    assert any("transcript silently gives" in each for each in findings)


def test_a_token_that_goes_back_is_noticed(monkeypatch):
    monkeypatch.setattr(_ledger, "parse_slots", lambda data: (_records.parse_slots(data)[0], False))
    findings = found("--store", "plain", "--kind", "ledger that spells", "--stride", "97")[1]
    assert any("tokens went back" in each for each in findings)


def test_damaged_bytes_that_are_thrown_away_are_noticed(monkeypatch):
    def discard(self, path, *, keep):
        if not keep:
            _files.remove_file(path)

    monkeypatch.setattr(_checkpoint_files.NamespaceFiles, "set_aside", discard)
    findings = found("--store", "plain", "--kind", "early", "--stride", "7", "--write-stride", "1")[1]
    assert any("are gone" in each for each in findings)


def test_files_that_changed_places_are_noticed_by_their_ids(monkeypatch):
    monkeypatch.setattr(_checkpoint_files, "_owned", lambda image, checkpoint_id, path: image)
    findings = found("--store", "plain", "--kind", "checkpoint with writes", "--stride", "999")[1]
    assert any("swapped" in each for each in findings)
