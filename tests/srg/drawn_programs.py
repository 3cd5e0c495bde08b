"""Small programs, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from programs import HOLE, LAYER, Script

from djinn_lab.srg.program import Program

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
