"""Tokens: a user's own, and for admins those of all users. List, make, rotate, revoke."""

from __future__ import annotations

from djinn_lab.client.moments import shown_moment
from djinn_lab.client.shell_line import shell_line
from djinn_lab.dashboard.admin.new_tokens import NewTokens
from djinn_lab.dashboard.admin.section import PoolReading, stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.permissions import role_of
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, select, text_input
from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.errors import DjinnError, OptionError
from djinn_lab.pool.authentication import Role
from djinn_lab.protocol.rest.users import TokenMade, TokenView

TOKEN_COLUMNS = columns(
    ("user", "User", "mono"),
    ("name", "Token", "mono"),
    ("role", "Role", "short"),
    ("scopes", "Scopes", "short"),
    ("made", "Made", "number"),
    ("ends", "Ends", "number"),
    ("note", "Note", "text"),
)
SAME_ROLE = "the user's"
OVERLAP_HOURS = "24"


class TokensSection:
    """Show tokens, never the secrets, of which the pool has digests only."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._user = ""
        self._known: dict[str, TokenView] = {}
        self.tokens = table(TOKEN_COLUMNS, "Tokens", empty="Asking the pool")
        self.rotation = Form(
            {
                "overlap": text_input("Old secret stays valid, hours", value=OVERLAP_HOURS, width=190),
                "days": text_input("Days until it ends", placeholder="as the old one; 0: never", width=190),
            }
        )
        self.rotate = button("Rotate", disabled=True)
        self.revoke = button("Revoke", color="danger", disabled=True)
        self.changing = Changes(board.background, "change-token")
        self.form = Form(
            {
                "name": text_input("Name of the token", width=180),
                "user": text_input("User", width=160),
                "role": select("Role", [SAME_ROLE, *(role.label for role in Role)], width=130),
                "days": text_input("Days until it ends", placeholder="90; 0: never", width=150),
                "scopes": text_input("Scopes (optional)", placeholder="read, cells, queue", width=220),
            }
        )
        self.make = button("Make token", color="primary")
        self.making = Changes(board.background, "make-token")
        self.secret, self.rotated = NewTokens(), NewTokens()
        self._reading = PoolReading(board, "tokens", lambda reader: reader.tokens(), self._show)
        self._heading = html_pane(heading("Tokens", "Asking the pool."), margin=(0, 0, 6, 0))
        self._chosen_heading = html_pane(margin=(12, 0, 4, 0))
        making = heading("Make a token", "One for each place where it is used. Its secret is shown once.")
        self.view = stack(
            self._heading,
            self._reading.problem,
            self.tokens,
            self._chosen_heading,
            self.rotation.view,
            self.changing.bar(self.rotate, self.revoke),
            self.changing.view,
            self.rotated.view,
            html_pane(making, margin=(14, 0, 6, 0)),
            self.form.view,
            self.make,
            self.making.view,
            self.secret.view,
        )
        self.make.on_click(lambda event: self.make_token())
        self.rotate.on_click(lambda event: self.ask_rotate())
        self.revoke.on_click(lambda event: self.ask_revoke())
        self.tokens.param.watch(lambda event: self._chosen(), "selected")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        self._user = snapshot.user
        own_only = role_of(snapshot) is not Role.ADMIN
        user = self.form.fields["user"]
        user.placeholder = self._user
        user.disabled = own_only
        self._reading.update()

    def make_token(self) -> None:
        """Make the token of the form."""
        form = self.form
        form.clear_notes()
        self.making.clear()
        try:
            name, days = form.required("name", "the token's name"), form.number("days")
        except OptionError:
            return
        user = form.text("user")
        role = "" if form.value("role") == SAME_ROLE else str(form.value("role"))
        scopes = tuple(form.parts("scopes"))
        hub = self._board.hub

        def work() -> tuple[TokenMade, str]:
            reader = hub.reader()
            made = reader.make_token(name, user=user, role=role, days=days, scopes=scopes)
            return made, shell_line(reader, made.secret)

        self.making.run(f"Making the token {name}.", work, self._made, self._refused)

    def _made(self, answer: tuple[TokenMade, str]) -> str:
        self.form.reset()
        return self._show_secret(self.secret, answer)

    def _show_secret(self, place: NewTokens, answer: tuple[TokenMade, str]) -> str:
        made, line = answer
        place.show(f"{token_sentence(made.token)} Its secret is shown only this once:", line)
        self._reading.again()
        return f"The token {made.token.name} of {made.token.user} has a new secret, which stands below."

    def _refused(self, error: DjinnError) -> None:
        """Show the pool's words beside the field that they are about."""
        signs = {
            "days": "days, not",
            "scopes": "scope",
            "role": "has here the role",
            "user": "There is no user",
        }
        field = next((name for name, sign in signs.items() if sign in error.message), "name")
        self.form.refused(field, error.message)

    def ask_rotate(self) -> None:
        """Make a new secret for the chosen token; first ask where the old one ends at once."""
        token = self._known.get(self.tokens.selected)
        self.rotation.clear_notes()
        if token is None:
            return
        try:
            hours, days = self.rotation.number("overlap"), self.rotation.number("days")
        except OptionError:
            return
        overlap_h = float(OVERLAP_HOURS) if hours is None else hours
        if overlap_h:
            self._rotate(token, overlap_h, days)
            return
        self.changing.ask(
            f"Rotate {token.name} of {token.user} without an overlap? Programs that use the old secret lose "
            "the pool at once.",
            "rotate it",
            lambda: self._rotate(token, overlap_h, days),
        )

    def _rotate(self, token: TokenView, overlap_h: float, days: float | None) -> None:
        hub = self._board.hub

        def work() -> tuple[TokenMade, str]:
            reader = hub.reader()
            made = reader.rotate_token(token.user, token.name, overlap_s=overlap_h * 3600, days=days)
            return made, shell_line(reader, made.secret)

        def done(answer: tuple[TokenMade, str]) -> str:
            until = f"ends in {overlap_h:g} h" if overlap_h else "has ended"
            return f"{self._show_secret(self.rotated, answer)} The old secret {until}."

        def refused(error: DjinnError) -> None:
            field = "days" if "days, not" in error.message else "overlap"
            self.rotation.refused(field, error.message)

        self.changing.run(f"Rotating {token.name}.", work, done, refused)

    def ask_revoke(self) -> None:
        """Say what the chosen token's end breaks, and revoke it once that is confirmed."""
        token = self._known.get(self.tokens.selected)
        if token is not None:
            self.changing.ask(revoke_question(token), "revoke it", lambda: self._revoke(token))

    def _revoke(self, token: TokenView) -> None:
        def done(answer: None) -> str:
            self.tokens.selected = ""
            self._reading.again()
            return f"The token {token.name} of {token.user} is revoked."

        self.changing.run(
            f"Revoking {token.name}.",
            lambda: self._board.hub.reader().revoke_token(token.user, token.name),
            done,
        )

    def _chosen(self) -> None:
        self._show_chosen()
        self.changing.clear()

    def _show_chosen(self) -> None:
        token = self._known.get(self.tokens.selected)
        self.rotate.disabled = self.revoke.disabled = token is None
        words = "Choose a token above." if token is None else token_sentence(token)
        show_html(self._chosen_heading, heading("Rotate or revoke", words))

    def _show(self, known: list[TokenView]) -> None:
        self._known = {f"{token.user}/{token.name}": token for token in known}
        self._show_chosen()
        self.tokens.empty = "There are no tokens but the runtime file's"
        self.tokens.show([token_row(name, token) for name, token in self._known.items()])
        whose = "of all users" if any(token.user != self._user for token in known) else "of yours"
        show_html(self._heading, heading("Tokens", f"{len(known)} {whose}. The pool has no secrets of them."))


def token_row(name: str, token: TokenView) -> dict[str, object]:
    """Return a token as a row; ``name``: of the row."""
    ends = token.expires_at
    return {
        "id": name,
        "user": token.user,
        "name": token.name,
        "role": token.role,
        "scopes": ", ".join(token.scopes) or "all",
        "made": {"text": shown_moment(token.created_at), "sort": token.created_at},
        "ends": {"text": "never", "sort": 1e18}
        if ends is None
        else {"text": shown_moment(ends), "sort": ends},
        "note": "asking now" if token.in_use else "",
    }


def token_sentence(token: TokenView) -> str:
    """Say what a token may do, and until when."""
    limit = f" limited to {' and '.join(token.scopes)}" if token.scopes else ""
    ends = "never ends" if token.expires_at is None else f"ends {shown_moment(token.expires_at)}"
    return f"Token {token.name} of {token.user}: role {token.role}{limit}, {ends}."


def revoke_question(token: TokenView) -> str:
    """Say what breaks when a token ends."""
    own = " This page came with that token: your login here ends, too." if token.in_use else ""
    return (
        f"Revoke {token.name} of {token.user}? Connections that it opened are closed at once, and programs "
        f"that use it lose the pool.{own}"
    )
