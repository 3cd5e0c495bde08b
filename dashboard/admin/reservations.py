"""Reservations: list, make or replace, end."""

from __future__ import annotations

import time

from djinn_lab.client.moments import read_moment, shown_moment
from djinn_lab.dashboard.admin.section import PoolReading, stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, text_input
from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.errors import DjinnError, OptionError
from djinn_lab.jobs.decision import CalendarReservation
from djinn_lab.units import counted, listed

RESERVATION_COLUMNS = columns(
    ("name", "Reservation", "mono"),
    ("devices", "Devices", "short"),
    ("accounts", "Accounts", "text"),
    ("begins", "Begins", "number"),
    ("ends", "Ends", "number"),
)
HINT = (
    "Only the accounts, with all accounts below them, run on the devices meanwhile. Times as 16:00, "
    "2026-11-23 16:00, +2h or now."
)


class ReservationsSection:
    """Reserve devices for accounts, and end a reservation before its time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._devices: tuple[str, ...] = ()
        self._known: dict[str, CalendarReservation] = {}
        self.reservations = table(RESERVATION_COLUMNS, "Reservations", empty="Asking the pool")
        self.end = button("End reservation", color="danger", disabled=True)
        self.ending = Changes(board.background, "end-reservation")
        self.form = Form(
            {
                "name": text_input("Name", placeholder="course", width=150),
                "devices": text_input("Devices", placeholder="cpu:0, cpu:1", width=190),
                "accounts": text_input("Accounts", placeholder="teaching, vision/train", width=220),
                "begins": text_input("From", value="now", width=150),
                "ends": text_input("Until", placeholder="+2h", width=150),
            }
        )
        self.reserve = button("Reserve", color="primary")
        self.making = Changes(board.background, "make-reservation")
        self._reading = PoolReading(board, "reservations", lambda reader: reader.reservations(), self._show)
        self._heading = html_pane(heading("Reservations", "Asking the pool."), margin=(0, 0, 6, 0))
        self.view = stack(
            self._heading,
            self._reading.problem,
            self.reservations,
            self.ending.bar(self.end, margin=(8, 0, 0, 0)),
            self.ending.view,
            html_pane(heading("Reserve devices", HINT), margin=(14, 0, 6, 0)),
            self.form.view,
            self.reserve,
            self.making.view,
        )
        self.reserve.on_click(lambda event: self.ask_reserve())
        self.end.on_click(lambda event: self.ask_end())
        self.reservations.param.watch(lambda event: self._chosen(), "selected")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        devices = () if snapshot.status is None else snapshot.status.devices
        self._devices = tuple(device.device for device in devices)
        self._reading.update()

    def ask_reserve(self) -> None:
        """Make the reservation of the form; first ask where it replaces one."""
        self.form.clear_notes()
        self.making.clear()
        try:
            wanted = self._wanted(time.time())
        except OptionError:
            return
        known = self._known.get(wanted.name)
        if known is None:
            self._reserve(wanted)
            return
        self.making.ask(
            f"Replace the reservation {known.name}? Now: {terms(known)}. Then: {terms(wanted)}.",
            "replace it",
            lambda: self._reserve(wanted),
        )

    def _wanted(self, now_s: float) -> CalendarReservation:
        """Read the form. Raises OptionError, with the note beside the field."""
        form = self.form
        name = form.required("name", "a name")
        form.required("devices", "the devices")
        devices = form.parts("devices")
        unknown = [device for device in devices if device not in self._devices]
        if unknown:
            there = listed(self._devices)
            raise form.refused("devices", f"The pool has no device {unknown[0]}; it has {there}.")
        form.required("accounts", "the accounts")
        accounts = form.parts("accounts")
        begins_s = self._moment("begins", "From", now_s)
        ends_s = self._moment("ends", "Until", begins_s)
        if ends_s <= max(begins_s, now_s):
            over = "before it begins" if ends_s <= begins_s else "in the past"
            raise form.refused("ends", f"It would end {over}, at {shown_moment(ends_s)}.")
        return CalendarReservation(name, frozenset(devices), begins_s, ends_s, frozenset(accounts))

    def _moment(self, field: str, name: str, now_s: float) -> float:
        text = self.form.required(field, "a time")
        try:
            return read_moment(name, text, now_s)
        except OptionError as error:
            raise self.form.refused(field, f"{error.message} {error.advice}") from None

    def _reserve(self, wanted: CalendarReservation) -> None:
        begins_s = wanted.begins_s if wanted.begins_s > time.time() else None
        hub = self._board.hub

        def work() -> list[str]:
            reader = hub.reader()
            devices, accounts = sorted(wanted.nodes), sorted(wanted.accounts)
            reader.reserve(wanted.name, devices, accounts, wanted.ends_s, begins_s)
            known = [f"{one.account}/" for one in reader.queue().accounts]
            return [one for one in accounts if not any(other.startswith(f"{one}/") for other in known)]

        def done(unknown: list[str]) -> str:
            self.form.reset()
            self._reading.again()
            unused = f" No cell has run as {listed(unknown)} yet." if unknown else ""
            return f"Reservation {wanted.name}: {terms(wanted)}.{unused}"

        self.making.run(f"Reserving for {wanted.name}.", work, done, self._refused)

    def _refused(self, error: DjinnError) -> None:
        """Show the pool's words beside the field that they are about."""
        words = error.message
        self.form.refused("ends" if "end before" in words else "devices", words)

    def ask_end(self) -> None:
        """End the chosen reservation once that is confirmed."""
        known = self._known.get(self.reservations.selected)
        if known is not None:
            self.ending.ask(
                f"End the reservation {known.name} now? Other accounts start cells on "
                f"{listed(sorted(known.nodes))} at once; {listed(sorted(known.accounts))} lose the claim.",
                "end it",
                lambda: self._end(known.name),
            )

    def _end(self, name: str) -> None:
        def done(answer: None) -> str:
            self.reservations.selected = ""
            self._reading.again()
            return f"Reservation {name} is over; its devices serve all accounts."

        self.ending.run(f"Ending {name}.", lambda: self._board.hub.reader().end_reservation(name), done)

    def _chosen(self) -> None:
        self.end.disabled = not self.reservations.selected
        self.ending.clear()

    def _show(self, known: list[CalendarReservation]) -> None:
        self._known = {one.name: one for one in known}
        self.reservations.empty = "No device is reserved"
        self.reservations.show([_row(one) for one in known])
        show_html(self._heading, heading("Reservations", f"{counted(len(known), 'reservation')}."))


def terms(one: CalendarReservation) -> str:
    """Say what is reserved, for which accounts, and when."""
    return (
        f"{listed(sorted(one.nodes))} for {listed(sorted(one.accounts))} from {shown_moment(one.begins_s)} "
        f"until {shown_moment(one.ends_s)}"
    )


def _row(one: CalendarReservation) -> dict[str, object]:
    return {
        "id": one.name,
        "name": one.name,
        "devices": listed(sorted(one.nodes)),
        "accounts": listed(sorted(one.accounts)),
        "begins": {"text": shown_moment(one.begins_s), "sort": one.begins_s},
        "ends": {"text": shown_moment(one.ends_s), "sort": one.ends_s},
    }
