"""``djinn-lab users``: the users of the pool, with role and account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli import tokens
from djinn_lab.cli.options import AsJson, listing_group
from djinn_lab.cli.output import print_found, print_json, print_line
from djinn_lab.client.moments import shown_moment

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.users import UserView

Name = Annotated[str, typer.Argument(help="The user's name.")]


def build_group() -> typer.Typer:
    group = listing_group("Users of the pool, with role and account (admins).", show_users)
    group.command("add")(add_user)
    group.command("role")(set_role)
    group.command("remove")(remove_user)
    group.add_typer(tokens.build_group(), name="token")
    return group


def show_users(as_json: AsJson = False) -> None:
    """List users with their roles and the accounts that pay for their cells."""
    from djinn_lab.client.rest import PoolClient

    found = PoolClient.find().users()
    print_found(found, as_json, "Users", ("user", "role", "account"), _row, "There are no users.")


def add_user(
    name: Name,
    role: Annotated[str, typer.Option(help="viewer, user, operator or admin.")] = "user",
    account: Annotated[
        str | None, typer.Option(help="The project that the user belongs to, e.g. vision/train.")
    ] = None,
    days: tokens.Days = None,
    as_json: AsJson = False,
) -> None:
    """Add a user with a first token, which is shown only this once."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.client.shell_line import shell_line

    client = PoolClient.find()
    made = client.create_user(name, role, account, days)
    if as_json:
        print_json(made)
        return
    ends = "never ends" if made.expires_at is None else f"ends {shown_moment(made.expires_at)}"
    print_line(
        f"{made.name} may use the pool as {made.role}. The token {ends}, and is shown only this once. "
        "For its shell:"
    )
    print_line(f"  {shell_line(client, made.token)}")


def set_role(
    name: Name, role: Annotated[str, typer.Argument(help="viewer, user, operator or admin.")]
) -> None:
    """Give a user another role, which holds for the user's tokens and sessions at once."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.client.role_sentence import role_sentence

    client = PoolClient.find()
    print_line(role_sentence(client.set_role(name, role), client.tokens()))


def remove_user(name: Name) -> None:
    """End a user's token, sessions and batch notebooks at once."""
    from djinn_lab.client.rest import PoolClient

    PoolClient.find().delete_user(name)
    print_line(f"{name} may not use the pool any more.")


def _row(user: UserView) -> tuple[str, ...]:
    return user.name, user.role, user.account
