"""Which sessions may share a worker process: those of one trust group."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from djinn_lab.pool.sessions.registry import ClientSession
from djinn_lab.protocol.isolation import (
    ISOLATION_DEFAULT,
    STRONG,
    WEAKEST_FIRST,
    Isolation,
    SandboxLevel,
)


class IsolationRules(NamedTuple):
    """``accept_weak``: several users may come in where the sandbox of workers does not hold."""

    isolation: Isolation = ISOLATION_DEFAULT
    accept_weak: bool = False

    def group_of(self, session: ClientSession) -> str:
        """Return the name of the session's trust group."""
        match self.isolation:
            case "user":
                return session.user
            case "account":
                return session.account
            case "session":
                return session.session
            case "none":
                return ""


def too_weak(rules: IsolationRules, levels: Iterable[SandboxLevel], users: Set[str], user: str) -> str | None:
    """Say why another user may not come in beside ``users``, whose workers have these levels; None: it
    may."""
    others = users - {user}
    if not others or rules.accept_weak:
        return None
    if rules.isolation == "none":
        return "all sessions of this pool share one process (--isolation none)"
    weakest = min(levels, key=WEAKEST_FIRST.index, default="full")
    if weakest in STRONG:
        return None
    return f"the sandbox of this pool's workers does not hold (level {weakest})"


ISOLATION_RULES = IsolationRules()
