"""``djinn-lab data``: data that jobs have published, for jobs that depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson, listing_group
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.client.moments import shown_moment

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.announcements import Published

Name = Annotated[str, typer.Argument(help="Name of the data.")]


def build_group() -> typer.Typer:
    group = listing_group("Data that jobs wait for with --after data:NAME.", show_data)
    group.command("publish")(publish_data)
    group.command("forget")(forget_data)
    return group


def show_data(as_json: AsJson = False) -> None:
    """List what was published for your jobs, newest first."""
    from djinn_lab.client.rest import PoolClient

    found = PoolClient.find().published()
    headings = ("name", "user", "job", "since")
    none = "Nothing is published. In a notebook: djinn_lab.publish(NAME)"
    print_found(found, as_json, "Published data", headings, _row, none)


def publish_data(name: Name) -> None:
    """Publish data under a name; jobs that wait for it may start."""
    from djinn_lab.client.rest import PoolClient

    found = PoolClient.find().publish(name)
    print_line(f"Data {name!r} has been published since {shown_moment(found.at)}.")


def forget_data(name: Name) -> None:
    """Withdraw published data: jobs that depend on it wait until it is published again."""
    from djinn_lab.client.rest import PoolClient

    PoolClient.find().forget_data(name)
    print_line(f"Data {name!r} was withdrawn.")


def _row(one: Published) -> tuple[str, ...]:
    return one.name, one.user, one.job[:12], shown_moment(one.at)
