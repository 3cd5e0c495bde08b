"""How a run of the queue is simulated, apart from its trace, nodes and policy."""

from __future__ import annotations

from typing import Literal

import msgspec

Estimates = Literal["given", "exact", "history", "none"]
"""What is known of run times: what the trace says (its users' requests); the truth, as an oracle would; the
mean of the last two jobs that the account ended (Tsafrir, Etsion, Feitelson, IEEE TPDS 18(6), 2007), else
what the trace says; nothing."""


class Parking(msgspec.Struct, frozen=True):
    """The cost of a preemption: ``out_s`` until the victim's devices are free, ``back_s`` before it computes
    again, both on its devices. By size of gang: ``(members, out, back)``, the first row whose members are not
    exceeded counts; the last for all larger ones. ``link_bytes_per_s``: over which the state of a session
    travels besides, where the trace says how large it is."""

    steps: tuple[tuple[int, float, float], ...] = ((1, 0.0, 0.0),)
    link_bytes_per_s: float = 55e9

    def out_s(self, members: int, state_bytes: int = 0) -> float:
        return self._step(members)[1] + self.state_s(state_bytes)

    def back_s(self, members: int, state_bytes: int = 0) -> float:
        return self._step(members)[2] + self.state_s(state_bytes)

    def state_s(self, state_bytes: int) -> float:
        """Return the seconds of one copy of a session's state, one way."""
        return state_bytes / self.link_bytes_per_s

    def _step(self, members: int) -> tuple[int, float, float]:
        return next((step for step in self.steps if members <= step[0]), self.steps[-1])


PARKING = Parking(((1, 1.0, 1.0),))
"""Two seconds a preemption: the state of a full device of 16 GB over a 16 GB/s link, out and back."""
CHECKPOINT = Parking(((1, 0.0, 7.0), (8, 0.0, 30.0), (9, 0.0, 60.0)))
"""What the Helios artifact charges SRTF for a checkpoint and a restart: 7 s for one device, 30 s up to a
node, 60 s for more (Hu et al., SC'21)."""


class Failures(msgspec.Struct, frozen=True):
    """Nodes fail at random, on average every ``every_s`` each, and are back after ``repair_s``. What ran
    there starts again from where it was last parked."""

    every_s: float
    repair_s: float
    seed: int = 1


class QueueSettings(msgspec.Struct, frozen=True):
    """Settings of a run; ``bound_s``: of the bounded slowdown. ``quantum_s``: run time charged ahead, for
    policies that look at shares; the live pool's quantum is shorter, as its cells are. ``keep_jobs``: rows of
    single jobs that the result keeps. ``guaranteed``: devices of each pool, by account."""

    estimates: Estimates = "given"
    parking: Parking = PARKING
    failures: Failures | None = None
    bound_s: float = 10.0
    quantum_s: float = 600.0
    half_life_s: float = 7 * 86_400.0
    keep_jobs: int = 2_000
    guaranteed: dict[str, float] = {}
