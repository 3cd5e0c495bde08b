"""Which jobs start, which move aside, and why the others wait. Pure functions over a :class:`Cluster`."""

from djinn_lab.jobs.decision.cluster import Calendar, Cluster, ClusterState, Pin
from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.enact import enact, end, park
from djinn_lab.jobs.decision.limiting import submit_limit
from djinn_lab.jobs.decision.plan import Plan, Preemption, Reserved, Start, TopUp
from djinn_lab.jobs.decision.policy import OURS, POLICIES, Cause, QueuePolicy
from djinn_lab.jobs.decision.reason import Reason
from djinn_lab.jobs.decision.trace import Note, Trace

__all__ = [
    "OURS",
    "POLICIES",
    "Calendar",
    "Cause",
    "Cluster",
    "ClusterState",
    "Note",
    "Pin",
    "Plan",
    "Preemption",
    "QueuePolicy",
    "Reason",
    "Reserved",
    "Start",
    "TopUp",
    "Trace",
    "decide",
    "enact",
    "end",
    "park",
    "submit_limit",
]
