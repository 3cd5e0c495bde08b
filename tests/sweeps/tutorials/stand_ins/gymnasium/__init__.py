"""Stands in for gymnasium where it is not installed: the cart and its pole, with gymnasium's interface."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np


class CartPole:
    """The classic equations of motion; an episode ends when the pole falls or after 200 steps."""

    def __init__(self) -> None:
        self.action_space = SimpleNamespace(
            n=2, sample=lambda: int(np.random.randint(2)), seed=lambda seed: None
        )
        self.observation_space = SimpleNamespace(shape=(4,))
        self.spec = SimpleNamespace(reward_threshold=475.0)
        self._source = np.random.default_rng(0)
        self._state = np.zeros(4)
        self._steps = 0

    @property
    def unwrapped(self) -> CartPole:
        return self

    def reset(self, seed: int | None = None, **ignored: Any) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._source = np.random.default_rng(seed)
        self._state, self._steps = self._source.uniform(-0.05, 0.05, 4), 0
        return self._state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        place, speed, angle, spin = self._state
        push = 10.0 if int(action) == 1 else -10.0
        swing = (push + 0.05 * spin**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * swing) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        drive = swing - 0.05 * turn * math.cos(angle) / 1.1
        self._state = np.array(
            [place + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * spin, spin + 0.02 * turn]
        )
        self._steps += 1
        fell = bool(abs(self._state[0]) > 2.4 or abs(self._state[2]) > 0.209)
        return self._state.astype(np.float32), 1.0, fell, self._steps >= 200, {}

    def render(self) -> None:
        pass

    def close(self) -> None:
        pass


def make(name: str, **ignored: Any) -> CartPole:
    assert name.startswith("CartPole"), name
    return CartPole()
