"""Users of the pool: list, add, change the role, remove."""

from __future__ import annotations

from djinn_lab.client.moments import shown_moment
from djinn_lab.client.role_sentence import role_sentence
from djinn_lab.client.shell_line import shell_line
from djinn_lab.dashboard.admin.new_tokens import NewTokens
from djinn_lab.dashboard.admin.section import PoolReading, stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, select, text_input
from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.errors import DjinnError, OptionError
from djinn_lab.pool.authentication import Role
from djinn_lab.protocol.rest.sessions import SessionView
from djinn_lab.protocol.rest.users import UserToken, UserView
from djinn_lab.units import counted

USER_COLUMNS = columns(
    ("user", "User", "mono"),
    ("role", "Role", "short"),
    ("account", "Account", "mono"),
    ("sessions", "Sessions", "number"),
)
ROLES = tuple(role.label for role in Role)


class UsersSection:
    """Show users with their roles, add one with a first token, change a role, and remove a user."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: list[UserView] = []
        self._sessions: tuple[SessionView, ...] = ()
        self._asking = ""
        self.users = table(USER_COLUMNS, "Users", empty="Asking the pool")
        self.role_form = Form({"role": select("Role", list(ROLES), value="user", width=120, disabled=True)})
        self.change_role = button("Change role", disabled=True)
        self.remove = button("Remove user", color="danger", disabled=True)
        self.changing = Changes(board.background, "change-user")
        self.form = Form(
            {
                "name": text_input("Name", width=200),
                "role": select("Role", list(ROLES), value="user", width=120),
                "account": text_input("Account above (optional)", placeholder="vision/train", width=200),
                "days": text_input("Days until the token ends", placeholder="90; 0: never", width=190),
            }
        )
        self.add = button("Add user", color="primary")
        self.adding = Changes(board.background, "add-user")
        self.secret = NewTokens()
        self._reading = PoolReading(board, "users", lambda reader: reader.users(), self._show)
        self._heading = html_pane(heading("Users", "Asking the pool."), margin=(0, 0, 6, 0))
        self._chosen_heading = html_pane(margin=(12, 0, 4, 0))
        adding = heading("Add a user", "The user gets a first token, which is shown once.")
        self.view = stack(
            self._heading,
            self._reading.problem,
            self.users,
            self._chosen_heading,
            self.role_form.view,
            self.changing.bar(self.change_role, self.remove),
            self.changing.view,
            html_pane(adding, margin=(14, 0, 6, 0)),
            self.form.view,
            self.add,
            self.adding.view,
            self.secret.view,
        )
        self.add.on_click(lambda event: self.add_user())
        self.change_role.on_click(lambda event: self.ask_role())
        self.remove.on_click(lambda event: self.ask_remove())
        self.users.param.watch(lambda event: self._chosen(), "selected")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        self._asking = snapshot.user
        if snapshot.sessions != self._sessions:
            self._sessions = snapshot.sessions
            self._show_rows()
        self._reading.update()

    def add_user(self) -> None:
        """Add the user of the form."""
        form = self.form
        form.clear_notes()
        self.adding.clear()
        try:
            name, days = form.required("name", "the user's name"), form.number("days")
        except OptionError:
            return
        role, account = str(form.value("role")), form.text("account") or None
        hub = self._board.hub

        def work() -> tuple[UserToken, str]:
            reader = hub.reader()
            made = reader.create_user(name, role, account, days)
            return made, shell_line(reader, made.token)

        self.adding.run(f"Adding {name}.", work, self._added, self._refused)

    def _added(self, answer: tuple[UserToken, str]) -> str:
        made, line = answer
        ends = "never ends" if made.expires_at is None else f"ends {shown_moment(made.expires_at)}"
        self.secret.show(f"The token of {made.name} {ends}, and is shown only this once. For a shell:", line)
        self.form.reset()
        self._reading.again()
        return f"{made.name} may use the pool as {made.role}."

    def _refused(self, error: DjinnError) -> None:
        """Show the pool's words beside the field that they are about."""
        words = error.message
        field = "account" if "is not an account" in words else "days" if "days, not" in words else "name"
        self.form.refused(field, words)

    def ask_role(self) -> None:
        """Give the chosen user the chosen role; first ask where that takes something from the user."""
        user, role = self._user(), str(self.role_form.value("role"))
        self.role_form.clear_notes()
        if user is None:
            return
        if role == user.role:
            self.role_form.refused("role", f"{user.name} has this role.")
            return
        question = lower_role_question(user, Role[role.upper()], user.name == self._asking)
        if question:
            self.changing.ask(question, f"make {user.name} {role}", lambda: self._set_role(user.name, role))
        else:
            self._set_role(user.name, role)

    def _set_role(self, name: str, role: str) -> None:
        hub = self._board.hub

        def work() -> str:
            reader = hub.reader()
            return role_sentence(reader.set_role(name, role), reader.tokens())

        def done(sentence: str) -> str:
            self._reading.again()
            return sentence

        def refused(error: DjinnError) -> None:
            self.role_form.refused("role", error.message)

        self.changing.run(f"Changing the role of {name}.", work, done, refused)

    def ask_remove(self) -> None:
        """Say what the removal of the chosen user ends, and remove the user once that is confirmed."""
        name = self.users.selected
        if name:
            sessions = sum(session.user == name for session in self._sessions)
            self.changing.ask(removal_question(name, sessions), f"remove {name}", lambda: self._remove(name))

    def _remove(self, name: str) -> None:
        def done(answer: None) -> str:
            self.users.selected = ""
            self._reading.again()
            return f"{name} may not use the pool any more."

        self.changing.run(f"Removing {name}.", lambda: self._board.hub.reader().delete_user(name), done)

    def _user(self) -> UserView | None:
        return next((user for user in self._known if user.name == self.users.selected), None)

    def _chosen(self) -> None:
        user = self._user()
        if user is not None:
            self.role_form.fields["role"].value = user.role
        self.role_form.clear_notes()
        self.changing.clear()
        self._show_chosen()

    def _show_chosen(self) -> None:
        user = self._user()
        for widget in (self.role_form.fields["role"], self.change_role, self.remove):
            widget.disabled = user is None
        words = "Choose a user above." if user is None else f"{user.name} has the role {user.role}."
        show_html(self._chosen_heading, heading("Change or remove", words))

    def _show(self, known: list[UserView]) -> None:
        self._known = known
        self.users.empty = "There are no users"
        self._show_rows()
        self._show_chosen()

    def _show_rows(self) -> None:
        self.users.show([user_row(user, self._sessions) for user in self._known])
        if self._known:
            show_html(self._heading, heading("Users", users_sentence(self._known)))


def user_row(user: UserView, sessions: tuple[SessionView, ...]) -> dict[str, object]:
    return {
        "id": user.name,
        "user": user.name,
        "role": user.role,
        "account": user.account,
        "sessions": sum(session.user == user.name for session in sessions),
    }


def users_sentence(users: list[UserView]) -> str:
    """Count users by role: ``3 users: 1 admin, 2 users.``"""
    by_role = [(sum(user.role == role for user in users), role) for role in reversed(ROLES)]
    return f"{counted(len(users), 'user')}: {', '.join(counted(n, role) for n, role in by_role if n)}."


def lower_role_question(user: UserView, role: Role, own: bool) -> str:
    """Say what a lower role takes from a user; empty for a higher one. ``own``: the visitor's own role."""
    if role > Role[user.role.upper()]:
        return ""
    ends = " Cells and batch notebooks that run or wait are cancelled." if role < Role.USER else ""
    page = " That is your own role: you lose this section, and only another admin can give it back."
    return (
        f"Give {user.name} the role {role.label} in place of {user.role}? It holds at once, for all tokens "
        f"of {user.name}.{ends}{page if own else ''}"
    )


def removal_question(name: str, sessions: int) -> str:
    """Say what ends when a user is removed."""
    held = f" Variables of {counted(sessions, 'open session')} that are only on the pool are lost."
    return (
        f"Remove {name}? All tokens of {name} end at once, cells and batch notebooks of {name} are "
        f"cancelled, and sessions are closed.{held if sessions else ''}"
    )
