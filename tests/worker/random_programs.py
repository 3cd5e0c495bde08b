"""Random programs of one session: views and views of views, writes through them, shared weights, growing
caches, random numbers, errors; values outlive the program that made them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from programs import HOLE, Script

from djinn_lab.srg.program import Program, TensorMeta

SIZE = 6
SQUARE = (SIZE, SIZE)


class RandomPrograms:
    """Random programs of one session. ``blobs``: names of files with a square of floats, read as weights."""

    def __init__(self, seed: int, blobs: Sequence[str], first_id: int = 1) -> None:
        self.random = random.Random(seed)
        self.script = Script(first_id)
        self._blobs = blobs
        self._alive: list[int] = []
        self._made: list[int] = []
        self._fixed: set[int] = set()
        self._caches: list[int] = []

    def next(self) -> Program:
        """Return the next program, which keeps some of its values and releases some earlier ones."""
        choose = self.random
        before = list(self._alive)
        self._made = []
        steps: list[Callable[[], None]] = [
            *[self._load, self._weight, self._view, self._view, self._prefill, self._grow, self._grow],
            *[self._compute] * 4,
            *[self._write] * 5,
        ]
        draws = choose.random() < 0.7
        if draws:
            steps += [self._draw] * 2
        self._load()
        for _ in range(choose.randrange(4, 30)):
            choose.choice(steps)()
        end = choose.random()
        last: tuple[int, ...] = ()
        if end < 0.1:
            self.script.op("aten.mm.default", self._some(), self._load(SIZE + 1))
        elif end < 0.3:
            last = (self.script.dynamic("aten.nonzero.default", self._some()),)
        keep = tuple(value for value in self._made if choose.random() < 0.4) + last
        fetch = tuple(choose.sample(self._alive, min(3, len(self._alive))))
        release = tuple(value for value in before if choose.random() < 0.35)
        self._alive = [value for value in self._alive if value in keep or value in before]
        self._alive = [value for value in self._alive if value not in release]
        self._caches = [value for value in self._caches if value in self._alive]
        state = torch.Generator().manual_seed(choose.randrange(1000)).get_state().numpy().tobytes()
        return self.script.program(keep, fetch, release, state if draws else None)

    # --- steps

    def _load(self, size: int = SIZE) -> int:
        made = torch.Generator().manual_seed(self.random.randrange(100))
        return self._new(self.script.load(torch.randn(size, size, generator=made)), alive=size == SIZE)

    def _weight(self) -> None:
        blob = self.random.choice(self._blobs)
        self._new(self.script.load(torch.empty(SQUARE), blob))

    def _compute(self) -> None:
        name = self.random.choice(["mm", "add", "relu", "mul", "sqrt"])
        one = self._some()
        if name == "mm":
            self._new(self.script.op("aten.mm.default", one, self._some()))
        elif name == "add":
            self._new(self.script.op("aten.add.Tensor", one, self._some()))
        elif name == "mul":
            self._new(self.script.op("aten.mul.Tensor", one, scalars=(self.random.random(),)))
        else:
            self._new(self.script.op(f"aten.{name}.default", one))

    def _view(self) -> None:
        """View a square: transposed, or negated lazily."""
        source = self._some()
        meta = self.script.metas[source]
        if self.random.random() < 0.6:
            turned = TensorMeta(meta.dtype, meta.shape[::-1], meta.stride[::-1])
            value = self.script.op("aten.t.default", source, meta=turned, view=True)
        else:
            value = self.script.op("aten._neg_view.default", source, meta=meta, view=True)
        self._new(value)

    def _write(self) -> None:
        target = self._some()
        kind = self.random.choice(["add", "row", "other", "mul"])
        if kind == "row":
            meta = self.script.metas[target]
            line = TensorMeta(meta.dtype, meta.shape[1:], meta.stride[1:])
            row = self.script.op(
                "aten.select.int", target, meta=line, args=[HOLE, 0, self.random.randrange(SIZE)], view=True
            )
            self.script.write("aten.mul_.Tensor", row, scalars=(1.25,))
        elif kind == "add":
            self.script.write("aten.add_.Tensor", target, scalars=(self.random.randrange(1, 5),))
        elif kind == "mul":
            self.script.write("aten.mul_.Tensor", target, scalars=(0.5,))
        else:
            self.script.write("aten.copy_.default", target, self._load())

    def _draw(self) -> None:
        if self.random.random() < 0.5:
            self.script.write("aten.bernoulli_.float", self._some(), args=[HOLE, 0.5])
            return
        self._new(self.script.op("aten.rand_like.default", self._some()))

    def _prefill(self) -> None:
        tokens = torch.arange(8.0 * 3).view(1, 3, 2, 4).transpose(1, 2).contiguous()
        past = self.script.load(torch.empty(0))
        cache = self.script.append(past, self.script.load(tokens))
        self._caches.append(cache)
        self._made.append(cache)

    def _grow(self) -> None:
        if not self._caches:
            return
        past = self.random.choice(self._caches)
        if self.script.metas[past].shape[2] < 40:
            grown = self.script.append(past, self.script.load(torch.ones(1, 2, 3, 4)))
            self._caches.append(grown)
            self._made.append(grown)

    # --- parts

    def _new(self, value: int, alive: bool = True) -> int:
        self._made.append(value)
        if alive:
            self._alive.append(value)
        return value

    def _some(self) -> int:
        return self.random.choice(self._alive)
