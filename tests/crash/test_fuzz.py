"""What the fuzzer has found so far, and where it begins, replayed without it."""

from __future__ import annotations

import random
from argparse import Namespace

import pytest

from langgraph_turncheckpoint import _records
from tests.crash import fuzz
from tests.crash.fuzz_targets import TARGETS

ROUNDS = 150


def corpus(name):
    return [path.read_bytes() for path in sorted((fuzz.CORPUS / name).glob("*"))]


def test_the_command_knows_every_target():
    assert tuple(TARGETS) == fuzz.TARGET_NAMES


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_refused_with_a_typed_error_or_comes_back(name):
    inputs = [*corpus(name), *TARGETS[name].seeds(), b""]
    assert len(inputs) > 2
    for data in inputs:
        TARGETS[name].check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_so_is_every_input_with_a_few_other_bytes_and_checksums_that_are_right(name):
    target, rng = TARGETS[name], random.Random(name)
    inputs = [*corpus(name), *target.seeds()]
    for _ in range(ROUNDS):
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.randrange(1, 4) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        target.check(target.mend(bytes(data)))


def test_mended_bytes_get_behind_the_checksums():
    """Else the fuzzer would see nothing but them."""
    data = bytearray(TARGETS["records"].seeds()[0])
    data[_records.HEADER_SIZE + 20] ^= 1
    with pytest.raises(_records.MalformedError, match="checksum"):
        _records.parse_file(bytes(data))
    _records.parse_file(TARGETS["records"].mend(bytes(data)))


def test_a_decoder_that_breaks_is_noticed(monkeypatch):
    monkeypatch.setattr(_records, "_check_clear", lambda *clear: None)
    monkeypatch.setattr(_records, "_check_fields", lambda fields, kinds: None)
    target, rng, broken = TARGETS["checkpoint"], random.Random(3), 0
    inputs = target.seeds()
    for _ in range(600):
        data = bytearray(rng.choice(inputs))
        data[rng.randrange(_records.HEADER_SIZE, len(data))] = rng.randrange(256)
        try:
            target.check(target.mend(bytes(data)))
        except Exception:  # noqa: BLE001 - that is what a finding is
            broken += 1
    assert broken


def test_without_the_fuzzer_the_lab_says_what_it_needs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fuzz.run(Namespace()) == ([], [fuzz.NEEDED])
