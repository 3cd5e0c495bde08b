"""Stops that a worker was asked for, and whether it obeys them.

A worker stops between two ops. An op that never ends, and what a compiler made of several, holds the device
for ever while another thread of the process answers the pings."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_lab.protocol.worker import (
    Cancel,
    FromWorker,
    Preempt,
    RunAnswer,
    RunBatch,
    RunSegment,
    SegmentProgress,
    ToWorker,
)

PINGS_BEFORE_ENDED: dict[type[Cancel | Preempt], int] = {Cancel: 30, Preempt: 300}
"""Of two seconds each, without an op that ends. A cancelled cell has nothing to lose; a preempted one runs
again from its start. Pings count and not time, as in :mod:`djinn_lab.pool.launchers.pings`."""


@dataclass(slots=True)
class UnderWay:
    """``pings``: since it was asked to stop, or since its last op ended after that. ``most``: so many may be;
    None: it was not asked."""

    pings: int = 0
    most: int | None = None


class Stops:
    """Of one worker, which runs one segment after the other."""

    def __init__(self) -> None:
        self._runs: dict[str, UnderWay] = {}

    def sent(self, message: ToWorker) -> None:
        match message:
            case RunSegment():
                self._runs[message.job] = UnderWay()
            case RunBatch():
                self._runs |= {one.job: UnderWay() for one in message.segments}
            case Cancel() | Preempt() if message.job in self._runs:
                run = self._runs[message.job]
                most = PINGS_BEFORE_ENDED[type(message)]
                if run.most is None or most < run.most:
                    run.pings, run.most = 0, most
            case _:
                pass

    def said(self, message: FromWorker) -> None:
        if isinstance(message, RunAnswer):
            self._runs.pop(message.job, None)
        if isinstance(message, RunAnswer | SegmentProgress):
            for run in self._runs.values():
                run.pings = 0

    def pinged(self) -> str | None:
        """Note that time has passed; name the job that the worker does not stop, once that is for too
        long."""
        for job, run in self._runs.items():  # the others wait behind the first, or run between its ops
            if run.most is None:
                return None
            run.pings += 1
            return job if run.pings == run.most else None
        return None
