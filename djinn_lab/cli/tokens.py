"""``djinn-lab users token``: named tokens with an end, one for each place that they are used in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson, listing_group
from djinn_lab.cli.output import print_found, print_json, print_line
from djinn_lab.client.moments import shown_moment

if TYPE_CHECKING:
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.protocol.rest.users import TokenMade, TokenView

Name = Annotated[str, typer.Argument(help="The token's name.")]
OfUser = Annotated[str | None, typer.Option("--user", help="Whose token; default: your own (admins: any).")]
Days = Annotated[float | None, typer.Option(min=0, help="Days until it ends; 0: never. Default: 90.")]


def build_group() -> typer.Typer:
    group = listing_group("Tokens: your own, and for admins those of all users.", show_tokens)
    group.command("add")(add_token)
    group.command("rotate")(rotate_token)
    group.command("revoke")(revoke_token)
    return group


def show_tokens(as_json: AsJson = False) -> None:
    """List tokens with roles and ends; never the tokens themselves, of which the pool has digests only."""
    from djinn_lab.client.rest import PoolClient

    found = PoolClient.find().tokens()
    headings = ("user", "token", "role", "scopes", "made", "ends", "")
    print_found(found, as_json, "Tokens", headings, _row, "There are no tokens but the runtime file's.")


def add_token(
    name: Name,
    user: OfUser = None,
    role: Annotated[str, typer.Option(help="At most the user's role, which is the default.")] = "",
    days: Days = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Limit it to read, cells, queue, notebooks or admin; repeat it for several."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is shown only this once."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    made = client.make_token(name, user=user or "", role=role, days=days, scopes=scope or ())
    _print_made(made, client, as_json)


def rotate_token(
    name: Name,
    user: OfUser = None,
    overlap_hours: Annotated[
        float, typer.Option("--overlap", min=0, help="Hours for which the old one stays valid.")
    ] = 24.0,
    days: Annotated[
        float | None, typer.Option(min=0, help="Days until it ends; 0: never. Default: as the old one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace a token by a new one of its name. The old one ends after an overlap."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    whose = user or client.status().user
    made = client.rotate_token(whose, name, overlap_s=overlap_hours * 3600, days=days)
    _print_made(made, client, as_json)
    if not as_json:
        print_line(
            f"The old one ends in {overlap_hours:g} h; at once with: djinn-lab users token revoke {name}.old"
        )


def revoke_token(name: Name, user: OfUser = None) -> None:
    """End a token at once, with the connections that it opened."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    client.revoke_token(user or client.status().user, name)
    print_line(f"The token {name} is revoked.")


def _print_made(made: TokenMade, client: PoolClient, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    from djinn_lab.client.shell_line import shell_line

    one = made.token
    limit = f" limited to {' and '.join(one.scopes)}" if one.scopes else ""
    print_line(
        f"Token {one.name} of {one.user}: role {one.role}{limit}, {_ends(one)}. It is shown only this once:"
    )
    print_line(f"  {shell_line(client, made.secret)}")


def _ends(token: TokenView) -> str:
    return "never ends" if token.expires_at is None else f"ends {shown_moment(token.expires_at)}"


def _row(token: TokenView) -> tuple[str, ...]:
    ends = "never" if token.expires_at is None else shown_moment(token.expires_at)
    used = "asking now" if token.in_use else ""
    scopes = ", ".join(token.scopes) or "all"
    return token.user, token.name, token.role, scopes, shown_moment(token.created_at), ends, used
