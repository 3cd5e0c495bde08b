"""A program's structure is the same whether the wire extension finds it or Python."""

from __future__ import annotations

import pytest
from drawn_programs import tangled
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import CELL, contiguous

from djinn_lab.native import load
from djinn_lab.srg.plan_key import keyed
from djinn_lab.srg.program import Program, Source, encode_program
from djinn_lab.srg.structure import structure_of

pytestmark = pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")


@settings(deadline=None, max_examples=300)
@given(tangled)
def test_the_structure_is_the_same_without_the_extension(program: Program) -> None:
    material = keyed(encode_program(program)).material
    assert material
    assert structure_of(program, material) == structure_of(program)


@settings(deadline=None)
@given(tangled, st.data())
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
    program = Program([contiguous(4)], [], [CELL], [Source(1, 1, 0, "input", None)], [])
    with pytest.raises((ValueError, OverflowError, TypeError)):
        native.structure(keyed(encode_program(program)).material, sources)
