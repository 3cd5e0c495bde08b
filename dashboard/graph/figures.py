"""What a schedule says of each op of a graph, as arrays: seconds, and memory while it runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from djinn_lab.errors import PoolError
from djinn_lab.scheduler.schedule import ExecutionSchedule

Floats = NDArray[np.float64]


class NodeFigures(NamedTuple):
    """By node id. ``measured_s``: None before all ops ran. ``live_bytes``: planned, while the op runs."""

    predicted_s: Floats
    measured_s: Floats | None
    live_bytes: Floats

    @classmethod
    def of(cls, schedule: ExecutionSchedule, count: int) -> NodeFigures:
        """Read them from the schedule of a graph of ``count`` nodes. Raises PoolError where the cell has got
        more ops between the two requests."""
        if len(schedule.nodes) != count:
            raise PoolError(
                f"The schedule has {len(schedule.nodes)} ops and the graph {count}: the cell still runs",
                "Load the page again when it has ended",
            )
        order = np.array(schedule.order, dtype=np.int64)
        predicted_s, live_bytes = np.zeros(count), np.zeros(count)
        predicted_s[order] = [node.end_s - node.start_s for node in schedule.nodes]
        live_bytes[order] = [node.live_bytes for node in schedule.nodes]
        starts, ends = schedule.node_start_s, schedule.node_end_s
        measured_s = None
        if starts is not None and ends is not None and len(ends) == count:
            measured_s = np.array(ends) - np.array(starts)
        return cls(predicted_s, measured_s, live_bytes)
