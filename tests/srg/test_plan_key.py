"""Programs with equal keys can be checked, measured and prepared once."""

from __future__ import annotations

import msgspec
import pytest
from drawn_programs import build, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.errors import Refused
from djinn_lab.memory import predict_peak_bytes
from djinn_lab.pool.admission import PlanCache
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import Program, Source
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.preparation import last_uses

programs = st.builds(build, steps, size=st.integers(0, 9), keep_every=st.integers(1, 5))


@settings(deadline=None)
@given(steps, st.integers(0, 2**40))
def test_other_numbers_of_values_make_no_difference(plan: list[object], shift: int) -> None:
    one, other = build(plan), build(plan, first_id=shift)  # type: ignore[arg-type]
    assert plan_key(one) == plan_key(other)
    assert predict_peak_bytes(one) == predict_peak_bytes(other)
    assert last_uses(one) == last_uses(other)


@settings(deadline=None)
@given(programs, programs)
def test_what_the_key_does_not_tell_apart_needs_as_much_memory(one: Program, other: Program) -> None:
    if plan_key(one) == plan_key(other):
        assert predict_peak_bytes(one) == predict_peak_bytes(other)
        assert last_uses(one) == last_uses(other)


def test_what_matters_makes_another_key() -> None:
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
    keys = {plan_key(changed) for changed in (program, *others)}
    assert len(keys) == 1 + len(others)


@pytest.mark.parametrize("number", [-1, -7, 2**64])
def test_an_impossible_id_has_no_key_and_is_looked_at_closely(number: int) -> None:
    program = build([])
    broken = msgspec.structs.replace(program, sources=[Source(number, 0, 0, "input", None)])
    assert plan_key(broken) is None
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
