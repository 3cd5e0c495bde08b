"""Small programs, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st
from programs import CELL, HOLE, LAYER, Script, contiguous

from djinn_lab.srg.program import ComplexNumber, NodeRecord, NumericSettings, Program, Source, Template

BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor")
UNARY = ("aten.relu.default", "aten.tanh.default", "aten.neg.default")


@dataclass(frozen=True)
class Step:
    """``picks`` choose among the values that exist, modulo their number."""

    kind: str
    op: str
    picks: tuple[int, int]


steps = st.lists(
    st.one_of(
        st.builds(
            Step,
            st.just("binary"),
            st.sampled_from(BINARY),
            st.tuples(st.integers(0, 99), st.integers(0, 99)),
        ),
        st.builds(Step, st.just("unary"), st.sampled_from(UNARY), st.tuples(st.integers(0, 99), st.just(0))),
        st.builds(
            Step, st.just("view"), st.just("aten.view.default"), st.tuples(st.integers(0, 99), st.just(0))
        ),
        st.builds(
            Step,
            st.just("in_place"),
            st.just("aten.add_.Tensor"),
            st.tuples(st.integers(0, 99), st.integers(0, 99)),
        ),
        st.builds(
            Step,
            st.just("random"),
            st.just("aten.rand_like.default"),
            st.tuples(st.integers(0, 99), st.just(0)),
        ),
    ),
    max_size=25,
)


def build(
    plan: list[Step], size: int = 6, keep_every: int = 4, first_id: int = 0, uploaded: bool = False
) -> Program:
    """A program over vectors of one size, so that any two values may meet."""
    script = Script(first_id, LAYER)
    values = [
        script.source((size,), "weight"),
        script.source((size,), blob="ab" * 32 if uploaded else None),
    ]
    for step in plan:
        first, second = (values[pick % len(values)] for pick in step.picks)
        if step.kind == "binary":
            values.append(script.op(step.op, first, second, shape=(size,)))
        elif step.kind == "view":
            values.append(script.op(step.op, first, shape=(size,), args=[HOLE, [size]], view=True))
        elif step.kind == "in_place":
            script.write(step.op, first, second)
        else:
            values.append(script.op(step.op, first, shape=(size,)))
    produced = values[2:]
    return script.program(keep=tuple(produced[::keep_every]), fetch=tuple(produced[-1:]))


_OPS = (
    "aten.relu.default",
    "aten.bmm.default",
    "aten._softmax.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten.threshold_backward.default",
)
_METAS = (contiguous(4), contiguous(2, 3), contiguous(1, 2, 3, 4), contiguous(1, 2, 5, 4))


class _Tangle:
    """A program whose nodes hang together in any way that a valid one's may."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next = random.choice((0, 2**40))
        self._values: dict[int, int] = {}
        self._storages: list[int] = []
        sources = [self._source() for _ in range(random.randrange(6))]
        ops = random.sample(_OPS, random.randint(1, len(_OPS)))
        templates = [Template(op, [HOLE, [HOLE, HOLE]], {}) for op in ops]
        nodes = [self._node(random.randrange(len(ops))) for _ in range(random.randrange(12))]
        if random.random() < 0.3:
            value = self._new()
            nodes.append(NodeRecord(0, self._inputs(), (value,), (), (self._values[value],), 0, (), True))
        keep, fetch = ([*filter(lambda _: random.random() < 0.3, self._values)] for _ in range(2))
        state, under = random.choice((None, b"state")), random.choice((None, NumericSettings()))
        self.program = Program(_METAS, templates, [CELL], sources, nodes, keep, fetch, (), state, under)

    def _new(self) -> int:
        """Return a new value, in a new storage or in one that is known."""
        self._next += self._random.randint(1, 300)
        if not self._storages or self._random.random() < 0.6:
            self._storages.append(self._next + self._random.randrange(2))
        self._values[self._next] = self._random.choice(self._storages[-4:])
        return self._next

    def _source(self) -> Source:
        value, meta = self._new(), self._random.randrange(len(_METAS))
        blob, inline = self._random.choice(((None, None), ("ab" * 32, None), (None, b"bytes")))
        return Source(value, self._values[value], meta, "weight", blob, inline)

    def _inputs(self) -> tuple[int | None, ...]:
        return tuple(self._random.choices([None, *self._values], k=self._random.randrange(5)))

    def _node(self, template: int) -> NodeRecord:
        inputs = self._inputs()
        outputs: list[int | None] = [self._new() for _ in range(self._random.choice((0, 1, 1, 2)))]
        if self._random.random() < 0.3:
            outputs.append(self._random.choice([None, *inputs]))
        storages = [None if value is None else self._values[value] for value in outputs]
        metas = [None if value is None else self._random.randrange(len(_METAS)) for value in outputs]
        scalars = self._random.choice(((), (True, -7, 2**63), (0.5, ComplexNumber(1.0, -2.0))))
        return NodeRecord(template, inputs, tuple(outputs), tuple(metas), tuple(storages), 0, scalars)


tangled = st.integers(0, 2**32).map(lambda seed: _Tangle(Random(seed)).program)
