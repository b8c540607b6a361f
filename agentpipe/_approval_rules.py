"""Decisions that hold for later calls too; they lie in the state of the session.

``{"tool": {name: approved}, "arguments": {name and arguments: approved}, "agents": {name: rules}}``: what was decided
about a call of a sub-agent is a rule of that sub-agent's, under the name of the tool that it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentpipe._messages import FunctionCallContent
from agentpipe._session import AgentSession

#: Where a session keeps its rules.
APPROVAL_RULES = "agentpipe.approval_rules"
_AGENTS = "agents"


def check_rules(session: AgentSession | None) -> None:
    """ValueError where what lies in the place of the rules is none."""
    if session is None or APPROVAL_RULES not in session.state:
        return
    if not _are_rules(session.state[APPROVAL_RULES]):
        raise ValueError(f"state[{APPROVAL_RULES!r}] of session {session.id!r:.80} holds no approval rules")


def _are_rules(rules: object) -> bool:
    if not isinstance(rules, Mapping) or not all(isinstance(named, Mapping) for named in rules.values()):
        return False
    return all(_are_rules(own) for own in rules.get(_AGENTS, {}).values())


def keep_rule(session: AgentSession, call: FunctionCallContent, always: str, approved: bool) -> None:
    """Let a decision hold for later calls: of this tool, or of this tool with these arguments."""
    rules = session.state.setdefault(APPROVAL_RULES, {})
    rules.setdefault(always, {})[_key(call, always)] = approved


def rule_for(session: AgentSession | None, call: FunctionCallContent) -> bool | None:
    """What was decided once for all calls like this one; None where nothing was."""
    rules: Mapping[str, Any] | None = session.state.get(APPROVAL_RULES) if session is not None else None
    if rules is None:
        return None
    for always in ("arguments", "tool"):
        decided = rules.get(always, {}).get(_key(call, always))
        if isinstance(decided, bool):
            return decided
    return None


def lend_rules(session: AgentSession | None, agent: str, own: AgentSession) -> None:
    """Give a sub-agent's ``own`` session what was decided earlier about its calls."""
    rules = session.state.get(APPROVAL_RULES, {}).get(_AGENTS, {}).get(agent) if session is not None else None
    if rules:
        own.state[APPROVAL_RULES] = rules


def take_rules(session: AgentSession | None, agent: str, own: AgentSession) -> None:
    """Keep what was decided about the calls of a sub-agent for the next time that it is called."""
    if session is not None and (rules := own.state.get(APPROVAL_RULES)):
        kept = session.state.setdefault(APPROVAL_RULES, {}).setdefault(_AGENTS, {}).setdefault(agent, {})
        _unite(kept, rules)


def _unite(kept: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            _unite(kept.setdefault(key, {}), value)
        else:
            kept[key] = value


def _key(call: FunctionCallContent, always: str) -> str:
    if always == "tool":
        return call.name
    return f"{call.name} {json.dumps(call.arguments, sort_keys=True, ensure_ascii=False, default=str)}"
