"""Workloads of agents: when they arrive, how long they think, and which estimates of that they give."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.agent_tape import Shape

SIGMA = 1.5
"""Standard deviation of ln(estimate / truth), which is 1.4 to 1.7 on public agent traces."""
TURNS = Shape(prompt=384, tool=8, decode=2, turns=14)


@dataclass(frozen=True)
class Plan:
    """One agent. ``thinks_s[i]``: pause after turn i. ``says_s[i]``: its estimate of that pause, or None."""

    arrives_s: float
    thinks_s: tuple[float, ...]
    says_s: tuple[float | None, ...]


@dataclass(frozen=True)
class Workload:
    """``bias``: of all estimates; 0: none are given."""

    name: str
    agents: int
    think_s: float
    spread: float = 1.0
    rate_per_s: float | None = None
    bias: float = 1.0
    sigma: float = SIGMA
    together: bool = False

    def plans(self, shape: Shape, seed: int, quick: bool) -> list[Plan]:
        """``rate_per_s``: of arrivals; None: all are there from the start. ``together``: all wake at once."""
        draw = random.Random(seed)
        agents = max(6, self.agents // 8) if quick else self.agents
        arrives_s = 0.0
        plans = []
        for _ in range(agents):
            arrives_s += draw.expovariate(self.rate_per_s) if self.rate_per_s else 0.02
            thinks = tuple(self._think_s(draw) for _ in range(shape.turns - 1))
            says = tuple(self._estimate_s(think, draw) for think in thinks)
            plans.append(Plan(arrives_s, thinks, says))
        return plans

    def _think_s(self, draw: random.Random) -> float:
        return self.think_s if self.together else self.think_s * draw.lognormvariate(0.0, self.spread)

    def _estimate_s(self, think_s: float, draw: random.Random) -> float | None:
        if not self.bias:
            return None
        return think_s * self.bias * draw.lognormvariate(0.0, self.sigma)


LRU = ("lru_write_through",)
EIGHTY = Workload("80 agents live at once", agents=80, think_s=2.0)
OTHERS: tuple[tuple[Workload, tuple[str, ...]], ...] = (
    (Workload("Poisson arrivals, 80 agents", agents=80, think_s=2.0, rate_per_s=4.0), ()),
    (Workload("overload, 120 agents", agents=120, think_s=3.0), ()),
    (Workload("all wake at once, 60 agents", agents=60, think_s=3.0, together=True), LRU),
    (Workload("estimates x0.3, 80 agents", agents=80, think_s=2.0, bias=0.3), ()),
    (Workload("estimates x3, 80 agents", agents=80, think_s=2.0, bias=3.0), ()),
)
"""With the baselines that are run beside ours."""


def oracle(plan: Plan) -> Plan:
    """Says exactly how long it will think."""
    return Plan(plan.arrives_s, plan.thinks_s, plan.thinks_s)
