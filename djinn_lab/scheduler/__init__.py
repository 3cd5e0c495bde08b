"""One graph to one execution schedule: device, order, cost, memory plan, and the reasons.

What decides knows no clock, no I/O and no torch. Profiles and progress are read from files by
:mod:`djinn_lab.scheduler.setup` and :mod:`djinn_lab.scheduler.progressive`. See ``docs/scheduler.md``.
"""

from __future__ import annotations

from djinn_lab.scheduler.costs import CostEstimator, DeviceProfile, GraphCostEstimator
from djinn_lab.scheduler.environment import Environment, detect_environment
from djinn_lab.scheduler.features import FEATURES, Feature
from djinn_lab.scheduler.memory_order import MemoryOrder
from djinn_lab.scheduler.memory_plan import MemoryPlan
from djinn_lab.scheduler.modes import (
    MODE_FEATURES,
    AdaptiveScheduler,
    create_advanced_scheduler,
    create_basic_scheduler,
    create_semantic_scheduler,
)
from djinn_lab.scheduler.ordering import OptimizationStrategy
from djinn_lab.scheduler.profiles import SCHEDULER_PROFILES, SchedulerProfile
from djinn_lab.scheduler.progress import RunOutcome
from djinn_lab.scheduler.progressive import ProgressiveScheduler
from djinn_lab.scheduler.schedule import ExecutionSchedule, PlannedTransfer, ScheduledNode
from djinn_lab.scheduler.scheduler import SESSION_BOUND, Scheduler, create_scheduler_for_workload
from djinn_lab.scheduler.setup import (
    create_scheduler_from_profile,
    create_smart_scheduler,
    interactive_scheduler_setup,
)

__all__ = [
    "FEATURES",
    "MODE_FEATURES",
    "SCHEDULER_PROFILES",
    "SESSION_BOUND",
    "AdaptiveScheduler",
    "CostEstimator",
    "DeviceProfile",
    "Environment",
    "ExecutionSchedule",
    "Feature",
    "GraphCostEstimator",
    "MemoryOrder",
    "MemoryPlan",
    "OptimizationStrategy",
    "PlannedTransfer",
    "ProgressiveScheduler",
    "RunOutcome",
    "ScheduledNode",
    "Scheduler",
    "SchedulerProfile",
    "create_advanced_scheduler",
    "create_basic_scheduler",
    "create_scheduler_for_workload",
    "create_scheduler_from_profile",
    "create_semantic_scheduler",
    "create_smart_scheduler",
    "detect_environment",
    "interactive_scheduler_setup",
]
