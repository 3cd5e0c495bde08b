"""What people in charge said about devices, in the database: cordons, reservations and descriptions outlive
the pool."""

from __future__ import annotations

import logging

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from djinn_lab.jobs import (
    DeviceCordoned,
    DeviceDescribed,
    IllegalEvent,
    ReservationEnded,
    ReservationMade,
)
from djinn_lab.pool.database.batch import Work
from djinn_lab.pool.database.engine import upsert
from djinn_lab.pool.database.tables import steering
from djinn_lab.pool.execution.driver import Driver

StoredSetting = DeviceCordoned | DeviceDescribed | ReservationMade
OperatorEvent = StoredSetting | ReservationEnded

log = logging.getLogger(__name__)


def store_setting(event: OperatorEvent) -> Work:
    """Replaces what was said about the same device or reservation before; what is over is forgotten."""
    match event:
        case DeviceCordoned():
            kind, name, over = "cordon", event.device, not event.cordoned
        case DeviceDescribed():
            kind, name = "description", event.device
            over = not (event.labels or event.taints or event.price) and event.watts is None
        case ReservationMade() | ReservationEnded():
            kind, name, over = "reservation", event.name, isinstance(event, ReservationEnded)
    row = {"kind": kind, "name": name, "event": msgspec.json.encode(event).decode()}

    def write(connection: sa.Connection) -> None:
        if over:
            same = (steering.c.kind == kind) & (steering.c.name == name)
            connection.execute(sa.delete(steering).where(same))
        else:
            connection.execute(upsert(connection, steering, "kind", "name").values(row))

    return write


def read_settings(connection: sa.Connection) -> list[StoredSetting]:
    """Read all stored settings."""
    rows = connection.execute(sa.select(steering.c.event).order_by(steering.c.kind, steering.c.name))
    return [msgspec.json.decode(row.event, type=StoredSetting) for row in rows]


def restore_settings(driver: Driver, kept: list[StoredSetting]) -> None:
    """Say it again to a pool whose devices are up. What does not fit this pool is logged and left out."""
    for event in kept:
        now_s = driver.core.clock.now_s()
        if isinstance(event, ReservationMade) and event.ends_s <= now_s:
            continue
        again = replace(event, at_s=now_s)
        try:
            driver.apply_setting(replace(again, drain=False) if isinstance(again, DeviceCordoned) else again)
        except IllegalEvent as error:
            log.warning("left out of what was said to an earlier pool: %s", error)
