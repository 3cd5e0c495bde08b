"""Decide which jobs start, which are preempted, and why the others wait. Pure functions over a
:class:`Cluster`."""

from djinn_lab.jobs.decision.decide import decide
from djinn_lab.jobs.decision.enact import enact, end, park
from djinn_lab.jobs.decision.explaining.explain import (
    Ahead,
    Blocker,
    Counterfactual,
    Explanation,
    Outlook,
    explain,
)
from djinn_lab.jobs.decision.explaining.forecast import (
    Change,
    ExpectedStart,
    Forecast,
    WhatIf,
    forecast,
    what_if,
)
from djinn_lab.jobs.decision.explaining.sentence import (
    class_sentence,
    error_sentence,
    sentence,
    sentence_with_start,
    why_no_start,
    with_short_ids,
)
from djinn_lab.jobs.decision.explaining.verdicts import DecisionTrace, Reason, Verdict
from djinn_lab.jobs.decision.plan import Plan, Preemption, Start, StartReservation, TopUp
from djinn_lab.jobs.decision.rules.guarantees import Guarantees, JobQos, QosClass
from djinn_lab.jobs.decision.rules.interleaving import BRIEF_S, OVERDUE_S
from djinn_lab.jobs.decision.rules.limiting import soft_limit, start_limit, submit_limit
from djinn_lab.jobs.decision.rules.policy import DEFAULT, POLICIES, Cause, QueuePolicy, policy_named
from djinn_lab.jobs.decision.snapshot import DecisionSnapshot
from djinn_lab.jobs.decision.state.cluster import (
    CalendarReservation,
    CapacityReservation,
    Cluster,
    ClusterState,
)

__all__ = [
    "BRIEF_S",
    "DEFAULT",
    "OVERDUE_S",
    "POLICIES",
    "Ahead",
    "Blocker",
    "CalendarReservation",
    "CapacityReservation",
    "Cause",
    "Change",
    "Cluster",
    "ClusterState",
    "Counterfactual",
    "DecisionSnapshot",
    "DecisionTrace",
    "ExpectedStart",
    "Explanation",
    "Forecast",
    "Guarantees",
    "JobQos",
    "Outlook",
    "Plan",
    "Preemption",
    "QosClass",
    "QueuePolicy",
    "Reason",
    "Start",
    "StartReservation",
    "TopUp",
    "Verdict",
    "WhatIf",
    "class_sentence",
    "decide",
    "enact",
    "end",
    "error_sentence",
    "explain",
    "forecast",
    "park",
    "policy_named",
    "sentence",
    "sentence_with_start",
    "soft_limit",
    "start_limit",
    "submit_limit",
    "what_if",
    "why_no_start",
    "with_short_ids",
]
