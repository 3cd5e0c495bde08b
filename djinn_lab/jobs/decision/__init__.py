"""Which jobs start, which move aside, and why the others wait. Pure functions over a :class:`Cluster`."""

from djinn_lab.jobs.decision.cluster import Calendar, Cluster, ClusterState, Pin
from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.enact import enact, end, park
from djinn_lab.jobs.decision.explain import Ahead, Blocker, Counterfactual, Explanation, Outlook, explain
from djinn_lab.jobs.decision.forecast import Change, Expected, Forecast, WhatIf, forecast, what_if
from djinn_lab.jobs.decision.guarantees import QosClass, Standard, Standing
from djinn_lab.jobs.decision.limiting import start_limit, submit_limit
from djinn_lab.jobs.decision.plan import Plan, Preemption, Reserved, Start, TopUp
from djinn_lab.jobs.decision.policy import OURS, POLICIES, Cause, QueuePolicy
from djinn_lab.jobs.decision.reasons import Reason
from djinn_lab.jobs.decision.record import DecisionRecord, Snapshot, record
from djinn_lab.jobs.decision.sentence import class_told, how_far_off, sentence, short, told
from djinn_lab.jobs.decision.trace import Note, Trace

__all__ = [
    "OURS",
    "POLICIES",
    "Ahead",
    "Blocker",
    "Calendar",
    "Cause",
    "Change",
    "Cluster",
    "ClusterState",
    "Counterfactual",
    "DecisionRecord",
    "Expected",
    "Explanation",
    "Forecast",
    "Note",
    "Outlook",
    "Pin",
    "Plan",
    "Preemption",
    "QosClass",
    "QueuePolicy",
    "Reason",
    "Reserved",
    "Snapshot",
    "Standard",
    "Standing",
    "Start",
    "TopUp",
    "Trace",
    "WhatIf",
    "class_told",
    "decide",
    "enact",
    "end",
    "explain",
    "forecast",
    "how_far_off",
    "park",
    "record",
    "sentence",
    "short",
    "start_limit",
    "submit_limit",
    "told",
    "what_if",
]
