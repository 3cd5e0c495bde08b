"""How many sessions and connections a user may have at once, unless a pool was started with other limits."""

from __future__ import annotations

SESSIONS_MAX = 1000
CONNECTIONS_MAX = 1200
