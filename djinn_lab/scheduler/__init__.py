"""One graph to one execution schedule: device, order, cost, memory plan, and the reasons.

No clock, no I/O, no torch. See ``docs/scheduler.md``.
"""

from __future__ import annotations

from djinn_lab.scheduler.costs import CostEstimator, DeviceProfile, GraphCostEstimator
from djinn_lab.scheduler.memory_plan import MemoryPlan
from djinn_lab.scheduler.ordering import OptimizationStrategy
from djinn_lab.scheduler.profiles import SCHEDULER_PROFILES, SchedulerProfile
from djinn_lab.scheduler.schedule import ExecutionSchedule, PlannedTransfer, ScheduledNode
from djinn_lab.scheduler.scheduler import SESSION_BOUND, Scheduler, create_scheduler_for_workload

__all__ = [
    "SCHEDULER_PROFILES",
    "SESSION_BOUND",
    "CostEstimator",
    "DeviceProfile",
    "ExecutionSchedule",
    "GraphCostEstimator",
    "MemoryPlan",
    "OptimizationStrategy",
    "PlannedTransfer",
    "ScheduledNode",
    "Scheduler",
    "SchedulerProfile",
    "create_scheduler_for_workload",
]
