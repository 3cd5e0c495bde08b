"""What a cell that failed, or was stopped, leaves of its optimizers.

An optimizer makes its state at a parameter's first step, and its Python runs ahead of the device. Where that
step's ops did not run, the state is as before it: there is none yet, and the next step makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import torch
from torch.optim.optimizer import Optimizer

from djinn_lab.units import counted


class SteppedOptimizers:
    """The optimizers whose steps were captured. ``why_lost``: says why a tensor has no value, None where it
    has one."""

    def __init__(self, why_lost: Callable[[torch.Tensor], str | None]) -> None:
        self._why_lost = why_lost
        self._optimizers: WeakSet[Optimizer] = WeakSet()

    def add(self, optimizer: Optimizer) -> None:
        self._optimizers.add(optimizer)

    def undo(self, reason: str) -> str:
        """Take back states and gradients that have tensors which were not computed for ``reason``, and return
        a sentence that says so; empty where there are none."""
        taken = 0
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    if any(self._is_lost(value, reason) for value in state.values()):
                        del optimizer.state[parameter]
                        taken += 1
                    if parameter.grad is not None and self._is_lost(parameter.grad, reason):
                        parameter.grad = None
        return f"The optimizer's state of {counted(taken, 'parameter')} begins anew." if taken else ""

    def _is_lost(self, value: object, reason: str) -> bool:
        return isinstance(value, torch.Tensor) and self._why_lost(value) == reason
