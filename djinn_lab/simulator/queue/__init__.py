"""The queue under a simulated clock: the live pool's own decisions, simulated nodes and users."""

from djinn_lab.simulator.queue.figures import AccountFigures, QueueFigures
from djinn_lab.simulator.queue.run import QueueRun, simulate_queue
from djinn_lab.simulator.queue.settings import CHECKPOINT, PARKING, Failures, Parking, QueueSettings
from djinn_lab.simulator.queue.workload import BrokenLine, Follower, Trace, TraceJob, equal_nodes

__all__ = [
    "CHECKPOINT",
    "PARKING",
    "AccountFigures",
    "BrokenLine",
    "Failures",
    "Follower",
    "Parking",
    "QueueFigures",
    "QueueRun",
    "QueueSettings",
    "Trace",
    "TraceJob",
    "equal_nodes",
    "simulate_queue",
]
