"""Say what a user may do after a change of the role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.users import TokenView, UserView


def role_sentence(user: UserView, tokens: Sequence[TokenView]) -> str:
    """Name the user's role, and the tokens that stay below it because they were made for a lower one."""
    lower = [f"{one.name} ({one.role})" for one in tokens if one.user == user.name and one.role != user.role]
    kept = f" Tokens made for a lower role keep it: {', '.join(lower)}." if lower else ""
    return f"{user.name} has the role {user.role} now.{kept}"
