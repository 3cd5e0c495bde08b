"""A program's structure is the same whether the wire extension finds it or Python."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import CELL, HOLE, contiguous

from djinn_lab.native import load
from djinn_lab.srg.plan_key import keyed
from djinn_lab.srg.program import NodeRecord, Program, Source, Template, encode_program
from djinn_lab.srg.structure import structure_of

OPS = (
    "aten.relu.default",
    "aten.bmm.default",
    "aten._softmax.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten.threshold_backward.default",
)
METAS = (contiguous(4), contiguous(2, 3), contiguous(1, 2, 3, 4), contiguous(1, 2, 5, 4))
pytestmark = pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")


class Drawn:
    """A program whose nodes hang together in any way that a valid one's may."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next = random.choice((0, 2**40))
        self._values: dict[int, int] = {}
        self._storages: list[int] = []
        sources = [self._source() for _ in range(random.randrange(6))]
        ops = random.sample(OPS, random.randint(1, len(OPS)))
        templates = [Template(op, [HOLE, [HOLE, HOLE]], {}) for op in ops]
        nodes = [self._node(random.randrange(len(ops))) for _ in range(random.randrange(12))]
        if random.random() < 0.3:
            value = self._new()
            nodes.append(NodeRecord(0, self._inputs(), (value,), (), (self._values[value],), 0, (), True))
        keep, fetch = ([*filter(lambda _: random.random() < 0.3, self._values)] for _ in range(2))
        self.program = Program(METAS, templates, [CELL], sources, nodes, keep, fetch)

    def _new(self) -> int:
        """Return a new value, in a new storage or in one that is known."""
        self._next += self._random.randint(1, 300)
        if not self._storages or self._random.random() < 0.6:
            self._storages.append(self._next + self._random.randrange(2))
        self._values[self._next] = self._random.choice(self._storages[-4:])
        return self._next

    def _source(self) -> Source:
        value, meta = self._new(), self._random.randrange(len(METAS))
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
        metas = [None if value is None else self._random.randrange(len(METAS)) for value in outputs]
        return NodeRecord(template, inputs, tuple(outputs), tuple(metas), tuple(storages), 0)


drawn = st.integers(0, 2**32).map(lambda seed: Drawn(Random(seed)).program)


@settings(deadline=None, max_examples=300)
@given(drawn)
def test_the_structure_is_the_same_without_the_extension(program: Program) -> None:
    material = keyed(encode_program(program)).material
    assert material
    assert structure_of(program, material) == structure_of(program)


@settings(deadline=None)
@given(drawn, st.data())
def test_material_that_is_damaged_is_refused_or_read_as_another(
    program: Program, data: st.DataObject
) -> None:
    native = load("wire")
    assert native is not None
    material = bytearray(keyed(encode_program(program)).material)
    for _ in range(data.draw(st.integers(1, 3))):
        material[data.draw(st.integers(0, len(material) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = native.structure(bytes(material), (0,) * len(program.sources))
    except ValueError:
        return
    assert len(found) == 10


@pytest.mark.parametrize("sources", [(), (0, 0), (2**64,), ("one",)])
def test_each_source_has_one_size(sources: tuple[object, ...]) -> None:
    native = load("wire")
    assert native is not None
    program = Program(METAS, [], [CELL], [Source(1, 1, 0, "input", None)], [])
    with pytest.raises((ValueError, OverflowError, TypeError)):
        native.structure(keyed(encode_program(program)).material, sources)
