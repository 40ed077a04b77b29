"""What to do about a tool that had started when its process died: the policies of one guard. Tools may bring their
own in their metadata.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from ._finalize import POLICIES, Policy
from .errors import PolicyWarning, UnknownPolicyError

#: Key in a tool's `metadata`.
METADATA_KEY: Final = "on_restart"


class Policies:
    """Policies by tool name.

    Args:
        on_restart: By name; they take precedence over a tool's own.
        default: For every other tool.

    Raises:
        UnknownPolicyError: A policy is none of "report", "rerun", "ask".
        TypeError: `on_restart` is no mapping.
    """

    def __init__(self, on_restart: Mapping[str, str] | None, default: str) -> None:
        if not isinstance(on_restart, Mapping | None):
            raise TypeError(f"on_restart={on_restart!r}: use a policy by tool name, or default_on_restart for all")
        self._by_name = {name: _checked(policy, f"on_restart[{name!r}]") for name, policy in (on_restart or {}).items()}
        self._default = _checked(default, "default_on_restart")
        self._has_checked = False
        self._seen: frozenset[str] = frozenset()
        self._told: set[str] = set()

    def of(self, name: str, metadata: Mapping[str, Any] | None = None) -> Policy:
        """The policy of a tool.

        Raises:
            UnknownPolicyError: The tool's metadata names none.
        """
        if name in self._by_name:
            return self._by_name[name]
        own = (metadata or {}).get(METADATA_KEY)
        return self._default if own is None else _checked(own, f"the metadata of tool {name!r}")

    def check_tools(self, tools: Iterable[Any], *, are_all: bool = True) -> None:
        """Warn once about policies for tools that are not among these.

        Args:
            tools: Some of them may have no name.
            are_all: Whether there are no others; else only what looks like a slip of the pen is warned of.

        Raises:
            UnknownPolicyError: The metadata of one names none. Better now than when it is called beside others.
        """
        if self._has_checked:
            return
        known = {str(name): tool for tool in tools if (name := getattr(tool, "name", None))}
        for name, tool in known.items():
            self.of(name, getattr(tool, "metadata", None))
        self._has_checked, self._seen = bool(known) and are_all, self._seen | known.keys()
        missing = sorted(self._by_name.keys() - self._seen - self._told)
        if not are_all:
            missing = [name for name in missing if get_close_matches(name, self._seen)]
        if missing and known:
            self._told.update(missing)
            warnings.warn(
                f"on_restart names {', '.join(map(repr, missing))}, but the tools are {', '.join(sorted(known))}; "
                "check the spelling",
                PolicyWarning,
                stacklevel=3,
            )

    def has_seen(self, name: str) -> bool:
        """Whether a tool was among those that were checked."""
        return self._has_checked or name in self._seen


def _checked(policy: object, where: str) -> Policy:
    if policy not in POLICIES:
        raise UnknownPolicyError(where, policy, POLICIES)
    return policy
