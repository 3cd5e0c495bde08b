"""Programs with equal keys can be checked, measured and prepared once."""

from __future__ import annotations

import msgspec
import pytest
from drawn_programs import build, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.errors import Refused
from djinn_lab.memory import predict_peak_bytes
from djinn_lab.native import load
from djinn_lab.pool.sessions.admission import PlanCache
from djinn_lab.srg import plan_key as module
from djinn_lab.srg.plan_key import decode_contents, plan_key
from djinn_lab.srg.program import (
    ComplexNumber,
    NodeRecord,
    Program,
    ScalarHole,
    Source,
    Template,
    decode_program,
    encode_program,
)
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.preparation import last_uses

programs = st.builds(build, steps, size=st.integers(0, 9), keep_every=st.integers(1, 5))
needs_native = pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")


def key_of(program: Program) -> bytes | None:
    return plan_key(encode_program(program))


def with_scalars(program: Program) -> Program:
    """One more node, with a scalar of every kind."""
    template = Template("aten.add.Tensor", [ScalarHole()] * 5, {})
    scalars = (True, -7, 2**63, 0.5, ComplexNumber(1.0, -2.0))
    node = NodeRecord(len(program.templates), (None,), (None,), (None,), (None,), 0, scalars)
    return msgspec.structs.replace(
        program, templates=[*program.templates, template], nodes=[*program.nodes, node]
    )


@settings(deadline=None)
@given(steps, st.integers(0, 2**40))
def test_other_numbers_of_values_make_no_difference(plan: list[object], shift: int) -> None:
    one, other = build(plan), build(plan, first_id=shift)  # type: ignore[arg-type]
    assert key_of(one) == key_of(other)
    assert predict_peak_bytes(one) == predict_peak_bytes(other)
    assert last_uses(one) == last_uses(other)


@settings(deadline=None)
@given(programs, programs)
def test_programs_of_equal_plan_key_need_equal_memory(one: Program, other: Program) -> None:
    if key_of(one) == key_of(other):
        assert predict_peak_bytes(one) == predict_peak_bytes(other)
        assert last_uses(one) == last_uses(other)


def test_change_that_affects_the_plan_makes_another_key() -> None:
    program = build([], keep_every=1)
    replace = msgspec.structs.replace
    held = [source.value for source in program.sources]
    weight = program.sources[0]
    others = [
        replace(program, fetch=held[:1]),
        replace(program, keep=held[:1]),
        replace(program, sources=program.sources[:1]),
        replace(program, sources=[replace(weight, inline=b"x" * 24), *program.sources[1:]]),
        replace(program, metas=[*program.metas, program.metas[0]]),
    ]
    keys = {key_of(changed) for changed in (program, *others)}
    assert len(keys) == 1 + len(others)


@pytest.mark.parametrize("number", [-1, -7, 2**63, 2**64 - 1])
def test_an_impossible_id_has_no_key_and_is_looked_at_closely(number: int) -> None:
    program = build([])
    broken = msgspec.structs.replace(program, sources=[Source(number, 0, 0, "input", None)])
    assert key_of(broken) is None
    with pytest.raises(Refused):
        validate_program(broken)


def test_the_cache_counts_and_is_bounded() -> None:
    cache = PlanCache(entries_max=2)
    footprint = predict_peak_bytes(build([]))
    for key in (b"a", b"b", b"a", b"c", b"b"):
        if cache.find(key) is None:
            cache.keep(key, footprint)
    assert (cache.hits, cache.misses, cache.entries) == (1, 4, 2)
    assert cache.find(None) is None


@needs_native
@settings(deadline=None)
@given(programs, st.integers(0, 2**40))
def test_the_key_is_the_same_without_the_extension(program: Program, shift: int) -> None:
    native = load("wire")
    assert native is not None
    encoded = encode_program(with_scalars(program))
    assert native.plan_material(encoded) == module._material(encoded)


@settings(deadline=None)
@given(programs, st.data())
def test_bytes_with_a_known_key_and_readable_contents_are_a_program(
    program: Program, data: st.DataObject
) -> None:
    """Thus the pool need not decode the nodes of what it knows."""
    encoded = encode_program(with_scalars(program))
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if plan_key(bytes(damaged)) != plan_key(encoded):
        return
    try:
        contents = decode_contents(bytes(damaged))
    except msgspec.DecodeError:
        return
    decoded = decode_program(bytes(damaged))
    assert (decoded.sources, decoded.scopes, decoded.rng_state) == (
        contents.sources,
        contents.scopes,
        contents.rng_state,
    )


@pytest.mark.parametrize("scalar", [b"\xc0", b"\xa1x", b"\x91\x01", b"\x81\xa1t\xa1x", b"\xc4\x00"])
def test_a_scalar_of_another_kind_has_no_key(scalar: bytes) -> None:
    encoded = encode_program(with_scalars(build([])))
    number = b"\xcb" + b"\x3f\xe0" + bytes(6)
    assert encoded.count(number) == 1
    assert plan_key(encoded) is not None
    assert plan_key(encoded.replace(number, scalar)) is None
