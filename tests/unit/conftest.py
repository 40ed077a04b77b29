"""What the tests of the command line share: a store with a thread of each kind, and a way to call a command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from langgraph_turncheckpoint import cli
from tests.contract import cut_off_threads as cut


@pytest.fixture
def store(tmp_path):
    return cut.copy_of_store(tmp_path)


@pytest.fixture
def invoke():
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(cli.app, [str(a) for a in arguments], **options)
