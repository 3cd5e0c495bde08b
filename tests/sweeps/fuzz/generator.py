"""Random programs from a seed. Each step is tried eagerly while the program is made, so that most work."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from sweeps.fuzz.execution import Outcome, run_step
from sweeps.fuzz.operations import OPERATIONS, NotApplicable, Slots, draw_make, writes
from sweeps.fuzz.steps import Program, Segment, Step

STEPS = (5, 30)
INPUTS = (2, 4)
SEGMENT_STEPS = (3, 12)
FAILING_KEPT = 0.04
"""Share of failing steps that stay in the program; after one of them no other is kept."""
TRIES_MAX = 400
ELEMENTS_MAX = 4096

_NAMES = list(OPERATIONS)
_WEIGHTS = [OPERATIONS[name].weight for name in _NAMES]


def generate(seed: int) -> Program:
    """Return the seed's program: inputs outside of a cell, then cells, with steps outside in between."""
    maker = _Maker(seed)
    count = maker.random.randrange(STEPS[0], STEPS[1] + 1)
    segments = [Segment(False, tuple(maker.inputs()))]
    captured = True
    while count > 0:
        wanted = min(count, maker.random.randrange(*SEGMENT_STEPS))
        steps = tuple(maker.steps(wanted if captured else 1))
        segments.append(Segment(captured, steps))
        count -= max(len(steps), 1)
        captured = not captured or maker.random.random() < 0.7
    return Program(seed, tuple(segment for segment in segments if segment.steps))


class _Maker:
    """Keeps an eager copy of the program's state. A step that writes and fails may have changed it halfway:
    then the copy is made anew, without that step."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._seed = seed
        self._made: list[Step] = []
        self._next = 0
        self._failed = False
        self._tries = 0
        self._restart()

    def _restart(self) -> None:
        torch.default_generator.manual_seed(self._seed)
        self._values: dict[int, Any] = {}
        for step in self._made:
            run_step(step, self._values)

    def inputs(self) -> list[Step]:
        made = []
        for _ in range(self.random.randrange(*INPUTS)):
            made.append(Step("make", draw_make(Slots(self.random, self._values)), self._next))
            self._keep(made[-1])
            run_step(made[-1], self._values)
        return made

    def steps(self, count: int) -> list[Step]:
        made: list[Step] = []
        while len(made) < count and self._tries < TRIES_MAX:
            self._tries += 1
            [name] = self.random.choices(_NAMES, _WEIGHTS)
            try:
                arguments = OPERATIONS[name].draw(Slots(self.random, self._values))
            except NotApplicable:
                continue
            step = Step(name, arguments, self._next)
            random_state = torch.default_generator.get_state()
            outcome = run_step(step, self._values)
            if self._accept(outcome):
                made.append(step)
                self._keep(step)
            elif writes(name):
                self._restart()
            else:
                self._values.pop(step.slot, None)
                torch.default_generator.set_state(random_state)
        return made

    def _accept(self, outcome: Outcome) -> bool:
        if outcome.error is None:
            return not self._is_large()
        if self._failed or self.random.random() > FAILING_KEPT:
            return False
        self._failed = True
        return True

    def _is_large(self) -> bool:
        last = self._values.get(self._next)
        return isinstance(last, torch.Tensor) and last.numel() > ELEMENTS_MAX

    def _keep(self, step: Step) -> None:
        self._made.append(step)
        self._next += 1
