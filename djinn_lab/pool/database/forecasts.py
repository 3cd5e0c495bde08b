"""What forecasts of seconds and bytes are made from, and how far the pool's forecasts were off, in the
database: the next pool starts from them.

Written a moment later and once for all runs of a program meanwhile, so that no cell waits for it. Bounded: of
each program that is remembered its latest runs, of each kind of forecast how far the latest were off.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from djinn_lab.jobs.resources import ResourceRecords, ResourceUse
from djinn_lab.jobs.run_times import Source
from djinn_lab.pool.database.batch import PROGRAM, Row, WriteKind
from djinn_lab.pool.database.tables import forecasts

OFF = "off"
SAMPLES = "samples"
START_WAITS = "start waits"
"""Waits as they were forecast and as they were, see :mod:`djinn_lab.jobs.start_forecasts`."""
RUN_RATIOS = "runs"
"""Run times over what was predicted."""
RUN_TIME_RATIOS = "run times: "
"""The same by what they were predicted from; see :func:`run_times_name`."""
WHERE_CHARACTERS_MAX = 200
_encode = msgspec.msgpack.Encoder().encode
_decode_uses = msgspec.msgpack.Decoder(tuple[ResourceUse, ...]).decode
_decode_samples = msgspec.msgpack.Decoder(tuple[float, ...]).decode
_decode_off = msgspec.msgpack.Decoder(tuple[tuple[float, float], ...]).decode


def forecast_rows(learnt: ResourceRecords, at_s: float) -> Iterator[Row]:
    """Make rows that replace what was known of the same programs and forecasts."""
    for program, uses in learnt.uses.items():
        short = [replace(use, where=use.where[:WHERE_CHARACTERS_MAX]) for use in uses]
        yield _row(PROGRAM, program, at_s, short)
    for kind, off in learnt.errors.items():
        yield _row(OFF, kind, at_s, off)


def read_forecasts(connection: sa.Connection) -> ResourceRecords:
    """Read what is known of seconds and bytes."""
    column, found = forecasts.c, ResourceRecords()
    query = sa.select(column.kind, column.name, column.learnt).where(column.kind.in_((PROGRAM, OFF)))
    query = query.order_by(column.at_s, column.name)
    for row in connection.execute(query):
        if row.kind == PROGRAM:
            found.uses[row.name] = _decode_uses(row.learnt)
        else:
            found.errors[row.name] = _decode_off(row.learnt)
    return found


def samples_row(name: str, samples: tuple[float, ...], at_s: float) -> Row:
    """Make a row of samples, oldest first, that replaces those of the same name."""
    return _row(SAMPLES, name, at_s, samples)


def read_samples(connection: sa.Connection) -> dict[str, tuple[float, ...]]:
    """Read all samples by name, oldest first."""
    column = forecasts.c
    found = connection.execute(sa.select(column.name, column.learnt).where(column.kind == SAMPLES))
    return {row.name: _decode_samples(row.learnt) for row in found}


def run_times_name(source: Source, estimator: str) -> str:
    """Name the samples of run times over predictions. What runs taught of one cost estimator says nothing of
    another: ``estimator`` is its name, empty for the built-in model."""
    return f"{RUN_TIME_RATIOS}{source}" + (f" by {estimator}" if estimator and source == "graph" else "")


def _row(kind: str, name: str, at_s: float, learnt: object) -> Row:
    return Row(WriteKind.FORECAST, {"kind": kind, "name": name, "at_s": at_s, "learnt": _encode(learnt)})
