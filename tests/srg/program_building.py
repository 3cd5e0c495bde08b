"""Small programs, built by hand or drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    Residency,
    Scalar,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
)

HOLE = TensorHole()
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor")
UNARY = ("aten.relu.default", "aten.tanh.default", "aten.neg.default")


def contiguous(shape: tuple[int, ...], dtype: str = "float32") -> TensorMeta:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return TensorMeta(dtype, shape, tuple(reversed(stride)))


@dataclass
class Builder:
    """Appends nodes; every method returns the id of the value it makes. ``first_id`` shifts all value ids."""

    first_id: int = 0
    metas: list[TensorMeta] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=lambda: [Scope("Net.layer", 1, "cell", 3, "forward")])
    sources: list[Source] = field(default_factory=list)
    nodes: list[NodeRecord] = field(default_factory=list)
    storages: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, TensorMeta] = field(default_factory=dict)

    def source(
        self,
        shape: tuple[int, ...],
        residency: Residency = "input",
        blob: str | None = None,
        dtype: str = "float32",
    ) -> int:
        value = self._new(contiguous(shape, dtype))
        self.sources.append(Source(value, self.storages[value], len(self.metas) - 1, residency, blob))
        return value

    def op(
        self,
        name: str,
        *inputs: int,
        shape: tuple[int, ...],
        args: list[Any] | None = None,
        scalars: tuple[Scalar, ...] = (),
        view: bool = False,
    ) -> int:
        """``args`` defaults to one hole per input, then one per scalar."""
        value = self._new(contiguous(shape), self.storages[inputs[0]] if view else None)
        self._node(name, inputs, value, args, scalars)
        return value

    def in_place(self, name: str, *inputs: int, args: list[Any] | None = None) -> int:
        """Writes to the first input and returns it."""
        self.metas.append(self.layouts[inputs[0]])
        self._node(name, inputs, inputs[0], args, ())
        return inputs[0]

    def program(self, keep: tuple[int, ...] = (), fetch: tuple[int, ...] = ()) -> Program:
        return Program(self.metas, self.templates, self.scopes, self.sources, self.nodes, keep, fetch)

    def _new(self, meta: TensorMeta, storage: int | None = None) -> int:
        value = self.first_id + len(self.layouts)
        self.metas.append(meta)
        self.layouts[value] = meta
        self.storages[value] = value if storage is None else storage
        return value

    def _node(
        self,
        name: str,
        inputs: tuple[int, ...],
        output: int,
        args: list[Any] | None,
        scalars: tuple[Scalar, ...],
    ) -> None:
        default: list[Any] = [HOLE] * len(inputs) + [ScalarHole()] * len(scalars)
        self.templates.append(Template(name, default if args is None else args, {}))
        self.nodes.append(
            NodeRecord(
                template=len(self.templates) - 1,
                inputs=inputs,
                outputs=(output,),
                output_metas=(len(self.metas) - 1,),
                storages=(self.storages[output],),
                scope=0,
                scalars=scalars,
            )
        )


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
    builder = Builder(first_id)
    values = [
        builder.source((size,), "weight"),
        builder.source((size,), blob="ab" * 32 if uploaded else None),
    ]
    for step in plan:
        first, second = (values[pick % len(values)] for pick in step.picks)
        if step.kind == "binary":
            values.append(builder.op(step.op, first, second, shape=(size,)))
        elif step.kind == "view":
            values.append(builder.op(step.op, first, shape=(size,), args=[HOLE, [size]], view=True))
        elif step.kind == "in_place":
            builder.in_place(step.op, first, second)
        else:
            values.append(builder.op(step.op, first, shape=(size,)))
    produced = values[2:]
    return builder.program(keep=tuple(produced[::keep_every]), fetch=tuple(produced[-1:]))
