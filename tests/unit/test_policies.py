"""Restart policies: a name beats a tool's own metadata, which beats the default; what does not exist is refused."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from langgraph_turncheckpoint._finalize import POLICIES
from langgraph_turncheckpoint._policies import METADATA_KEY, Policies
from langgraph_turncheckpoint.errors import PolicyWarning, UnknownPolicyError


def tools(*names: str) -> list[object]:
    return [SimpleNamespace(name=name) for name in names]


@pytest.mark.parametrize("default", POLICIES)
@pytest.mark.parametrize("own", [None, *POLICIES])
@pytest.mark.parametrize("named", [None, *POLICIES])
def test_the_name_comes_first_then_the_metadata_then_the_default(default, own, named):
    policies = Policies({"tool": named} if named else None, default)
    metadata = {METADATA_KEY: own, "other": 1} if own else {"other": 1}
    assert policies.of("tool", metadata) == (named or own or default)
    assert policies.of("another") == default


@pytest.mark.parametrize("metadata", [None, {}, {METADATA_KEY: None}])
def test_a_tool_without_a_policy_of_its_own_gets_the_default(metadata):
    assert Policies({}, "ask").of("tool", metadata) == "ask"


@pytest.mark.parametrize("policy", ["", "REPORT", "never", None, 1, ["report"], {"report"}])
def test_a_policy_that_does_not_exist_is_refused_where_it_is_given(policy):
    with pytest.raises(UnknownPolicyError) as caught:
        Policies({"tool": policy}, "report")
    assert caught.value.where == "on_restart['tool']"
    assert caught.value.policy == policy
    assert caught.value.known == POLICIES
    with pytest.raises(UnknownPolicyError, match="default_on_restart"):
        Policies(None, policy)


@pytest.mark.parametrize("policy", ["", "REPORT", 1, ["report"]])
def test_a_policy_in_metadata_that_does_not_exist_is_refused_when_it_is_needed(policy):
    policies = Policies({"named": "rerun"}, "report")
    with pytest.raises(UnknownPolicyError, match="metadata of tool 'tool'"):
        policies.of("tool", {METADATA_KEY: policy})
    assert policies.of("named", {METADATA_KEY: policy}) == "rerun"


def test_what_is_passed_in_is_not_kept():
    given = {"tool": "rerun"}
    policies = Policies(given, "report")
    given["tool"] = given["other"] = "ask"
    assert (policies.of("tool"), policies.of("other")) == ("rerun", "report")


def test_names_without_a_tool_are_warned_of_once():
    policies = Policies({"serach": "rerun", "deploi": "ask", "read": "ask"}, "report")
    with pytest.warns(PolicyWarning, match="'deploi', 'serach'.*deploy, read, search") as caught:
        policies.check_tools(tools("read", "search", "deploy"))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policies.check_tools(tools("read"))


@pytest.mark.parametrize("known", [[], [{"type": "web_search"}], [SimpleNamespace(name=None)]])
def test_without_a_single_known_tool_nothing_is_said(known):
    """Tools that a provider runs have no name here."""
    Policies({"search": "rerun"}, "report").check_tools(known)


def test_names_that_all_have_a_tool_are_not_warned_of():
    policies = Policies({"a": "rerun", "b": "ask"}, "report")
    policies.check_tools(tools("a", "b", "c"))
    Policies(None, "report").check_tools(tools("a"))
