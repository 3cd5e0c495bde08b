"""Programs with equal keys can be checked, measured and prepared once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import torch
from drawn_programs import build, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import HOLE, Script, contiguous

from djinn_lab.errors import Refused
from djinn_lab.memory import predict_peak_bytes
from djinn_lab.native import load
from djinn_lab.pool.sessions.admission import InspectedProgram, PlanCache, inspect_encoded, inspect_program
from djinn_lab.srg import plan_key as module
from djinn_lab.srg.costs import forget_prices, price_use
from djinn_lab.srg.plan_key import decode_contents, keyed, plan_key
from djinn_lab.srg.program import (
    ComplexNumber,
    NodeRecord,
    Program,
    ScalarHole,
    Scope,
    Source,
    Template,
    decode_program,
    encode_program,
)
from djinn_lab.srg.validation import validate_content, validate_program
from djinn_lab.worker.preparation import last_uses

programs = st.builds(build, steps, size=st.integers(0, 9), keep_every=st.integers(1, 5))
DIGEST = "0123456789abcdef" * 4
needs_native = pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")


def key_of(program: Program) -> bytes | None:
    return plan_key(encode_program(program))


def inspect(program: Program, plans: PlanCache) -> InspectedProgram:
    return asyncio.run(inspect_program(encode_program(program), plans))


def with_scalars(program: Program) -> Program:
    """One more node, with a scalar of every kind."""
    template = Template("aten.add.Tensor", [ScalarHole()] * 5, {})
    scalars = (True, -7, 2**63, 0.5, ComplexNumber(1.0, -2.0))
    node = NodeRecord(len(program.templates), (None,), (None,), (None,), (None,), 0, scalars)
    return msgspec.structs.replace(
        program, templates=[*program.templates, template], nodes=[*program.nodes, node]
    )


def with_contents(program: Program, scope: Scope | None = None, blob: str = "fresh-" + 32 * "0") -> Program:
    """Two more sources with blobs, and one more scope."""
    more = [
        Source(2**50 + number, 2**50 + number, 0, "weight", name, None)
        for number, name in enumerate((DIGEST, blob))
    ]
    scopes = [*program.scopes, scope or Scope("Model.layer", 1, "cell 1", 3, "decode")]
    return msgspec.structs.replace(program, sources=[*program.sources, *more], scopes=scopes)


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


@settings(deadline=None)
@given(steps, st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_a_program_of_known_structure_measures_as_if_it_were_new(
    plan: list[Any], size: int, other: int, keep_every: int, uploaded: bool
) -> None:
    plans = PlanCache()
    inspect(build(plan, size, keep_every, uploaded=uploaded), plans)
    resized = build(plan, other, keep_every, first_id=500, uploaded=uploaded)
    found = inspect(resized, plans)
    forget_prices()
    assert msgspec.structs.replace(found, cached=False) == inspect(resized, PlanCache())
    assert (plans.hits, plans.resized) == ((1, 0) if size == other else (0, 1))


@pytest.mark.parametrize("native", ["", "off"])
def test_steps_of_a_growing_cache_have_one_structure(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_LAB_NATIVE", native)
    plans, before = PlanCache(), price_use()
    for tokens in range(20, 26):
        script = Script()
        past, query = script.source((1, 4, tokens, 8), "kv"), script.source((1, 4, 1, 8))
        meta = contiguous(1, 4, tokens + 1, 8)
        keys = script.op("aten.cat.default", past, query, meta=meta, args=[[HOLE, HOLE], -2])
        script.op(
            "aten.view.default", keys, meta=contiguous(4, tokens + 1, 8), args=[HOLE, [4, tokens + 1, 8]]
        )
        found = inspect(script.program(keep=(keys,)), plans)
        assert found.footprint.peak_bytes >= meta.span_bytes
        assert found.footprint.kept_bytes == meta.span_bytes
    assert (plans.hits, plans.misses, plans.resized) == (0, 6, 5)
    assert price_use().priced - before.priced <= 12, "two different calls a step"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"metas": [contiguous(2**45)]}, "too large"),
        ({"templates": [Template("aten.relu.default", [HOLE, 3], {})]}, "refused"),
        ({"inline": bytes(8)}, "inline bytes"),
    ],
)
def test_wrong_sizes_are_refused_though_the_structure_is_known(change: dict[str, Any], problem: str) -> None:
    plans, script = PlanCache(), Script()
    script.op("aten.relu.default", script.load(torch.zeros(4)), shape=(4,))
    right = script.program()
    inspect(right, plans)
    if "inline" in change:
        source = msgspec.structs.replace(right.sources[0], inline=change["inline"])
        wrong = msgspec.structs.replace(right, sources=[source])
    else:
        wrong = msgspec.structs.replace(right, **change)
    with pytest.raises(Refused, match=problem):
        inspect(wrong, plans)


def outcome(encoded: bytes, plans: PlanCache) -> InspectedProgram | str:
    try:
        return msgspec.structs.replace(inspect_encoded(encoded, plans), cached=False)
    except Refused as error:
        return str(error)


@settings(deadline=None)
@given(programs, st.integers(0, 10**6), st.sampled_from((-1, 0, 1, 2, 3, 10, 2**41, 2**62, None, "text")))
def test_a_known_structure_lets_nothing_pass_that_would_be_refused(
    program: Program, place: int, value: object
) -> None:
    """Whatever one size or argument is replaced with."""
    encoded = encode_program(with_contents(program))
    document = msgspec.msgpack.decode(encoded)
    sizes = [
        (numbers, index)
        for row in (*document["metas"], *(template[1] for template in document["templates"]))
        for numbers in row
        if isinstance(numbers, list)
        for index in range(len(numbers))
    ]
    numbers, index = sizes[place % len(sizes)]
    numbers[index] = value
    changed, plans = msgspec.msgpack.encode(document), PlanCache()
    inspect_encoded(encoded, plans)
    assert outcome(changed, plans) == outcome(changed, PlanCache())


@pytest.mark.parametrize("native", ["", "off"])
def test_text_that_is_no_text_is_refused(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_LAB_NATIVE", native)
    encoded = encode_program(
        Program([contiguous(4)], [Template("aten.relu.default", [HOLE], {})], [], [], [])
    )
    for text in (b"relu", b"float32", b"tensor"):
        with pytest.raises(Refused):
            inspect_encoded(encoded.replace(text, b"\xf6" + text[1:]), PlanCache())


def test_structures_are_bounded_by_the_numbers_that_they_hold() -> None:
    def chain(ops: int, size: int) -> Program:
        script = Script()
        value = script.source((size,))
        for _ in range(ops):
            value = script.op("aten.relu.default", value, shape=(size,))
        return script.program(keep=(value,))

    def wide(inputs: int, size: int) -> Program:
        script = Script()
        values = [script.source((size,)) for _ in range(inputs)]
        script.op("aten.cat.default", *values, shape=(size * inputs,), args=[[HOLE] * inputs])
        return script.program()

    def resized(*programs: Program) -> int:
        plans = PlanCache(numbers_max=100)
        for program in programs:
            inspect(program, plans)
        return plans.resized

    assert resized(chain(9, 1), chain(9, 2)) == 1
    assert resized(chain(9, 1), chain(8, 1), chain(8, 2), chain(9, 2)) == 1, "the first was forgotten"
    assert resized(wide(200, 1), wide(200, 2)) == 0
    assert resized(chain(9, 1), wide(200, 1), chain(9, 2)) == 1, "what is too large drives nothing out"


@needs_native
@settings(deadline=None)
@given(programs, st.integers(0, 2**40))
def test_the_key_is_the_same_without_the_extension(program: Program, shift: int) -> None:
    native = load("wire")
    assert native is not None
    encoded = encode_program(with_scalars(program))
    assert native.plan_material(encoded)[0] == module._material(encoded)


@settings(deadline=None)
@given(programs, st.data())
def test_bytes_with_a_known_key_and_readable_contents_are_a_program(
    program: Program, data: st.DataObject
) -> None:
    """Thus the pool need not decode the nodes of what it knows, nor what is plainly right of the rest."""
    encoded = encode_program(with_contents(with_scalars(program)))
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    key, blobs, _ = keyed(bytes(damaged))
    if key != plan_key(encoded):
        return
    try:
        contents = decode_contents(bytes(damaged))
    except msgspec.DecodeError:
        assert blobs is None
        return
    if blobs is not None:
        validate_content(contents)
        assert blobs == [source.blob for source in contents.sources if source.blob is not None]
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


@needs_native
def test_blobs_of_plain_contents_are_read_with_the_key() -> None:
    program = with_contents(build([]), blob=DIGEST)
    assert keyed(encode_program(program)).blobs == [DIGEST, DIGEST]
    assert keyed(encode_program(build([]))).blobs == []


@pytest.mark.parametrize("native", ["", "off"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"scope": Scope("Model", -1, "cell 1", 1, "decode")},
        {"scope": Scope("Model", 1, "cell 1", -1, "decode")},
        {"scope": Scope("m" * 5000, 1, "cell 1", 1, "decode")},
        {"scope": Scope("Model", 1, "c" * 5000, 1, "decode")},
        {"scope": Scope("Model", 1, "cell 1", 1, "sleep")},  # type: ignore[arg-type]
        {"blob": DIGEST[1:]},
        {"blob": DIGEST.upper()},
        {"blob": DIGEST + "\n"},
        {"blob": "fresh-" + 31 * "0"},
        {"rng_state": bytes(2**16 + 1)},
    ],
)
def test_wrong_contents_are_refused_though_the_key_is_known(
    wrong: dict[str, Any], native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJINN_LAB_NATIVE", native)
    plans, right = PlanCache(), msgspec.structs.replace(build([]), rng_state=b"state")
    first = inspect(with_contents(right), plans)
    again = inspect(with_contents(right, blob=DIGEST), plans)
    assert (first.cached, again.cached) == (False, True)
    assert (first.blobs, again.blobs) == ([DIGEST, "fresh-" + 32 * "0"], [DIGEST])
    changed = dict(wrong)
    state = changed.pop("rng_state", b"state")
    broken = msgspec.structs.replace(with_contents(right, **changed), rng_state=state)
    with pytest.raises(Refused):
        inspect(broken, plans)


def test_unusual_names_of_scopes_are_taken_too() -> None:
    plans = PlanCache()
    for name in ("Model", "Modèle", "m" * 2000):
        scope = Scope(name, 1, "cell 1", 1, "decode")
        inspected = inspect(with_contents(build([]), scope), plans)
        assert inspected.blobs == [DIGEST, "fresh-" + 32 * "0"]
    assert (plans.hits, plans.misses) == (2, 1)


def test_call_with_shapes_that_its_op_never_has_is_refused() -> None:
    script = Script()
    query, key, value = (script.source((4,)) for _ in range(3))
    attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    made = script.op(attention, query, key, value, shape=(4,))
    with pytest.raises(Refused, match="has a call that its op does not take"):
        inspect_encoded(encode_program(script.program(keep=(made,))), PlanCache())
