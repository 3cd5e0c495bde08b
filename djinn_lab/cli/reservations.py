"""``djinn-lab reservations``: devices that are reserved for accounts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson, listing_group
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.client.moments import read_moment, shown_moment
from djinn_lab.errors import OptionError
from djinn_lab.units import listed

if TYPE_CHECKING:
    from djinn_lab.jobs.decision import CalendarReservation

HEADINGS = ("name", "devices", "for", "from", "until")

Name = Annotated[str, typer.Argument(help="Name of the reservation, e.g. course.")]


def build_group() -> typer.Typer:
    group = listing_group("Devices that are reserved for accounts.", show_reservations)
    group.command("make")(make_reservation)
    group.command("end")(end_reservation)
    return group


def show_reservations(as_json: AsJson = False) -> None:
    """List reservations: devices, accounts, times."""
    from djinn_lab.client.rest import PoolClient

    found = PoolClient.find().reservations()
    none = "No reservations. Make one: djinn-lab reservations make NAME --device D --account A"
    print_found(found, as_json, "Reservations", HEADINGS, reservation_row, none)


def make_reservation(
    name: Name,
    device: Annotated[list[str], typer.Option(help="A device to reserve; repeatable.")],
    account: Annotated[
        list[str],
        typer.Option(help="A user, project or organisation, with the accounts below it; repeatable."),
    ],
    until: Annotated[str, typer.Option(help="When it ends: 16:00, 2026-11-23 16:00, or +2h for two hours.")],
    begin: Annotated[str, typer.Option("--from", help="When it begins: a moment as above, or now.")] = "now",
) -> None:
    """Reserve devices for accounts, in place of a reservation of the same name (operators)."""
    from djinn_lab.client.rest import PoolClient

    client, now_s = PoolClient.find(), time.time()
    begins_s = read_moment("--from", begin, now_s)
    ends_s = read_moment("--until", until, begins_s)
    if ends_s <= max(begins_s, now_s):
        over = "before it begins" if ends_s <= begins_s else "in the past"
        raise OptionError(f"It would end {over}: from {shown_moment(begins_s)} until {shown_moment(ends_s)}.")
    client.reserve(name, device, account, ends_s, begins_s if begins_s > now_s else None)
    print_line(
        f"Reservation {name}: {listed(device)} for {listed(account)} "
        f"from {shown_moment(begins_s)} until {shown_moment(ends_s)}."
    )
    known = [f"{one.account}/" for one in client.queue().accounts]
    unknown = [one for one in account if not any(other.startswith(f"{one}/") for other in known)]
    if unknown:
        print_line(f"No cell has run as {listed(unknown)} yet; djinn-lab queue lists the accounts.")


def end_reservation(name: Name) -> None:
    """End a reservation before its time (operators)."""
    from djinn_lab.client.rest import PoolClient

    PoolClient.find().end_reservation(name)
    print_line(f"Reservation {name} is over; its devices serve all accounts.")


def reservation_row(one: CalendarReservation) -> tuple[str, ...]:
    return (
        one.name,
        listed(sorted(one.nodes)),
        listed(sorted(one.accounts)),
        shown_moment(one.begins_s),
        shown_moment(one.ends_s),
    )
