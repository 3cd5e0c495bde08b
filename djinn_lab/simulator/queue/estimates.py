"""What is known of a job's run time when it is handed in."""

from __future__ import annotations

from djinn_lab.simulator.queue.settings import Estimates
from djinn_lab.simulator.queue.workload import TraceJob


class Estimator:
    """``history`` looks at jobs that have ended by then, never ahead."""

    def __init__(self, kind: Estimates) -> None:
        self.kind = kind
        self._last: dict[str, tuple[float, ...]] = {}

    def estimate_s(self, job: TraceJob) -> float | None:
        match self.kind:
            case "exact":
                return job.run_s
            case "none":
                return None
            case "given":
                return job.estimate_s
            case "history":
                last = self._last.get(job.account)
                if last is None:
                    return job.estimate_s
                mean_s = sum(last) / len(last)
                return mean_s if job.estimate_s is None else min(mean_s, job.estimate_s)

    def ended(self, job: TraceJob) -> None:
        if self.kind == "history":
            self._last[job.account] = (*self._last.get(job.account, ())[-1:], job.run_s)
