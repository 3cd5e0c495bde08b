"""Which role the groups of a user give."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from djinn_lab.errors import OptionError
from djinn_lab.pool.authentication import Role, checked_role


class RoleMapping(msgspec.Struct, frozen=True):
    """``groups``: (role, group) pairs. ``default``: the role of users in none of these groups, empty to
    refuse those users."""

    groups: tuple[tuple[str, str], ...] = ()
    default: str = ""

    def role_of(self, groups: Collection[str]) -> Role | None:
        """Return the highest role that the groups give, None for none."""
        given = [checked_role(role) for role, group in self.groups if group in groups]
        if self.default:
            given.append(checked_role(self.default))
        return max(given, default=None)


def parse_roles(option: str, text: str, default: str, default_option: str) -> RoleMapping:
    """Read ``admin=chiefs,user=staff,user=guests``. Raises OptionError."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        role, found, group = (piece.strip() for piece in part.partition("="))
        if not found or not group:
            raise OptionError(f"{option}: {part!r} is not ROLE=GROUP.", "Write admin=chiefs,user=staff.")
        pairs.append((checked(option, role), group))
    if default:
        checked(default_option, default)
    if not pairs and not default:
        raise OptionError(
            "No user of that provider would have a role.", f"Give {option}, {default_option} or both."
        )
    return RoleMapping(tuple(pairs), default.lower())


def checked(option: str, role: str) -> str:
    """Return a role's label. Raises OptionError that names the option."""
    try:
        return checked_role(role).label
    except ValueError as error:
        raise OptionError(f"{option}: {error}.") from None
