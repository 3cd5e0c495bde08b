"""Lay tasks that depend on each other over several devices, so that the last one ends early."""

from djinn_lab.scheduler.makespan.graph import Laid, TaskGraph
from djinn_lab.scheduler.makespan.heft import heft
from djinn_lab.scheduler.makespan.search import lay

__all__ = ["Laid", "TaskGraph", "heft", "lay"]
