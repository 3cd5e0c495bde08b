"""For how long a session waits for its vanished client, and when it ends."""

from __future__ import annotations

import msgspec

from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.sessions.registry import ClientSession

KEPT_S = 86_400.0
EMPTY_KEPT_S = 600.0


class DetachedRules(msgspec.Struct, frozen=True):
    """``kept_s``: how long a session waits that holds something, or whose client may come back.
    ``empty_kept_s``: one that holds nothing, at most as long as the other."""

    kept_s: float = KEPT_S
    empty_kept_s: float = EMPTY_KEPT_S


def ends_at(driver: Driver, session: ClientSession, rules: DetachedRules) -> float | None:
    """Return when a session will be closed, None for one whose client is there."""
    if session.link is not None:
        return None
    core = driver.core
    holds = core.accounts.session_bytes(session.session) or core.queue.has_unfinished(session.session)
    waits = session.awaited or holds  # one that may come back finds its session, also an empty one
    kept_s = rules.kept_s if waits else min(rules.empty_kept_s, rules.kept_s)
    return session.last_seen + kept_s


def close_left_sessions(driver: Driver, rules: DetachedRules) -> None:
    """Close the sessions whose time is over."""
    now_s = driver.core.clock.now_s()
    for session in driver.registry:
        until_s = ends_at(driver, session, rules)
        if until_s is not None and until_s <= now_s:
            driver.close(session, "its client was gone for too long")
