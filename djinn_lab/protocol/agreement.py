"""Which protocol a client and a pool have in common, and which of them to update where they have none."""

from __future__ import annotations

from collections.abc import Collection

from djinn_lab.protocol.messages import CLIENT_VERSIONS, PROTOCOL_VERSION


def common_protocol(pool: Collection[int]) -> int | None:
    """Return the newest protocol of this version's clients that the pool speaks, too; None for none."""
    return max(set(CLIENT_VERSIONS).intersection(pool), default=None)


def what_to_update(pool: Collection[int], pool_version: str, client: int = PROTOCOL_VERSION) -> str:
    """Say, to a user of the client, which side is the older one and what to do. ``client``: the newest
    protocol that it speaks."""
    here = f"install djinn-lab {pool_version} where the notebook runs"
    if client < max(pool):
        return f"The client is the older one: {here}."
    return f"The pool is the older one: update djinn-lab there and start it again, or {here}."
