"""Which ops become regions, and that nothing is lost between a region and the rest of its program."""

from __future__ import annotations

from drawn_programs import Step, build, steps
from hypothesis import given
from programs import HOLE, Script, contiguous

from djinn_lab.srg.program import Program, ScalarHole, encode_program
from djinn_lab.srg.region_programs import compilable, region_ops, region_peak_bytes, validate_region
from djinn_lab.srg.regions import (
    REGION_OP,
    Region,
    RegionSize,
    find_regions,
    first_nodes,
    with_regions,
)

ANY_SIZE = RegionSize(ops_min=1, seconds_min=0.0, seconds_max=1e9)
SIZE = 1024


def regions_of(program: Program, size: RegionSize = ANY_SIZE) -> tuple[Region, ...]:
    return find_regions(program, [1e-3] * len(program.nodes), size=size)


def extents(program: Program, size: RegionSize = ANY_SIZE) -> list[tuple[int, int]]:
    return [(region.first, region.end) for region in regions_of(program, size)]


@given(steps)
def test_rewritten_program_makes_and_reads_the_same_values(plan: list[Step]) -> None:
    program = build(plan)
    regions = regions_of(program)
    rewritten = with_regions(program, regions)
    known = {source.value for source in program.sources}
    for node in rewritten.nodes:
        assert known.issuperset(node.inputs)
        known.update(value for value in node.outputs if value is not None)
    assert known.issuperset((*program.keep, *program.fetch))
    starts = first_nodes(len(program.nodes), regions)
    assert len(starts) == len(rewritten.nodes) + 1
    assert starts == sorted({*starts})
    assert starts[-1] == len(program.nodes)


@given(steps)
def test_regions_are_valid_programs_without_random_numbers(plan: list[Step]) -> None:
    program = build(plan)
    for region in regions_of(program):
        alone = compilable(program, region)
        validate_region(alone)
        assert "aten.rand_like.default" not in {template.op for template in alone.templates}
        assert {scope.module + scope.cell for scope in alone.scopes} == {""}


def test_region_returns_what_is_needed_later_and_no_more() -> None:
    script = Script()
    source = script.source((SIZE,))
    dead = script.op("aten.exp.default", source)
    kept = script.op("aten.neg.default", dead)
    used = script.op("aten.tanh.default", kept)
    script.write("aten.cos_.default", used)
    program = script.program(keep=(kept,))
    (region,) = regions_of(program)
    node = with_regions(program, [region]).nodes[0]
    assert node.inputs == (source,)
    assert set(node.outputs) == {kept, used}


def test_view_that_is_needed_later_is_made_again_from_what_it_looks_at() -> None:
    script = Script()
    source = script.source((SIZE,))
    base = script.op("aten.exp.default", source)
    view = script.op("aten.view.default", base, args=[HOLE, [SIZE]], view=True)
    script.op("aten.neg.default", view)
    program = script.program(keep=(view, script.op("aten.neg.default", view)))
    (region,) = regions_of(program)
    assert region.views == (1,)
    rewritten = with_regions(program, [region])
    made = dict(zip(rewritten.nodes[0].outputs, rewritten.nodes[0].storages, strict=True))
    assert made[view] == made[base]


def test_equal_layers_are_equal_regions_whatever_their_names_and_values() -> None:
    script = Script()
    value = script.source((SIZE,))
    for _ in range(2):
        weight = script.source((SIZE,), "weight")
        value = script.op("aten.mul.Tensor", script.op("aten.exp.default", value), weight)
        script.write("aten.cos_.default", value)
    program = script.program(keep=(value,))
    first, second = (encode_program(compilable(program, region)) for region in regions_of(program))
    assert first == second


def test_numbers_are_part_of_a_region() -> None:
    def scaled(factor: float) -> bytes:
        script = Script()
        value = script.op("aten.mul.Tensor", script.source((SIZE,)), scalars=(factor,))
        program = script.program(keep=(value,))
        return encode_program(compilable(program, regions_of(program)[0]))

    assert scaled(0.5) == scaled(0.5) != scaled(0.25)


def test_region_ends_where_it_would_take_too_long_or_have_too_many_ops() -> None:
    script = Script()
    value = script.source((SIZE,))
    for _ in range(10):
        value = script.op("aten.exp.default", value)
    program = script.program(keep=(value,))
    assert extents(program, RegionSize(1, 4, 0.0, 1e9)) == [(0, 4), (4, 8), (8, 10)]
    assert extents(program, RegionSize(1, 100, 0.0, 0.0065)) == [(0, 6), (6, 10)]
    assert extents(program, RegionSize(1, 100, 0.0115, 1e9)) == []
    assert extents(program, RegionSize(11, 100, 0.0, 1e9)) == []


def test_ops_that_read_at_places_named_by_data_are_in_no_region() -> None:
    script = Script()
    table, places = script.source((8, SIZE)), script.source((4,), dtype="int64")
    rows = script.op("aten.embedding.default", table, places, shape=(4, SIZE))
    program = script.program(keep=(script.op("aten.exp.default", rows),))
    assert extents(program) == [(1, 2)]


def test_division_of_whole_numbers_is_in_no_region() -> None:
    script = Script()
    one, other = (script.source((SIZE,), dtype="int64") for _ in range(2))
    meta = contiguous(SIZE, dtype="int64")
    quotient = script.op("aten.div.Tensor_mode", one, other, args=[HOLE, HOLE], meta=meta)
    assert extents(script.program(keep=(quotient,))) == []


def test_text_that_is_more_than_a_word_is_in_no_region() -> None:
    def with_text(text: str) -> Program:
        script = Script()
        return script.program(
            keep=(script.op("aten.gelu.default", script.source((SIZE,)), args=[HOLE, text]),)
        )

    assert extents(with_text("tanh")) == [(0, 1)]
    assert extents(with_text('tanh"); system("true')) == []


def test_growing_key_value_cache_is_in_no_region() -> None:
    script = Script()
    past, token = script.source((1, 2, 3, 4)), script.source((1, 2, 1, 4))
    assert extents(script.program(keep=(script.append(past, token),))) == []


def test_peak_counts_what_is_alive_at_once() -> None:
    script = Script()
    value = script.source((SIZE,))
    for _ in range(5):
        value = script.op("aten.exp.default", value)
    program = script.program(keep=(value,))
    (region,) = regions_of(program)
    assert region_peak_bytes(compilable(program, region)) == 2 * SIZE * 4
    assert with_regions(program, [region]).templates[-1].op == REGION_OP


def test_memory_that_a_region_writes_has_one_name_in_it() -> None:
    script = Script()
    weight = script.source((SIZE, SIZE), "weight")
    turned = script.op("aten.t.default", weight, meta=contiguous(SIZE, SIZE), view=True)
    product = script.op("aten.mm.default", weight, turned)
    script.op("aten.neg.default", product)
    script.write("aten.add_.Tensor", weight, product)
    program = script.program(keep=(script.op("aten.exp.default", weight),))
    assert extents(program) == [(1, 3), (3, 5)]
    assert [region.written for region in regions_of(program)] == [(), (0,)]


def sgd(size: float) -> Program:
    """Three writes of a weight, of which the last two take a number that may be another in each step."""
    script, value = Script(), ScalarHole()
    weight, change, scale = (script.source((SIZE,)) for _ in range(3))
    script.write("aten.mul_.Tensor", weight, scalars=(0.9,))
    script.write(
        *("aten.addcdiv_.default", weight, change, scale),
        args=[HOLE] * 3,
        kwargs={"value": value},
        scalars=(size,),
    )
    script.write(
        *("aten.add_.Tensor", weight, change), args=[HOLE] * 2, kwargs={"alpha": value}, scalars=(size,)
    )
    return script.program()


def test_number_that_is_another_in_each_run_is_an_input() -> None:
    def compiled(size: float) -> Program:
        program = sgd(size)
        (region,) = find_regions(program, [1.0] * 3, {1, 2}, ANY_SIZE)
        assert with_regions(program, [region]).nodes[0].scalars == (size, size)
        assert [node.scalars for node in region_ops(program, region).nodes] == [(0.9,), (size,), (size,)]
        return compilable(program, region)

    assert compiled(0.5) == compiled(0.25)
    validate_region(compiled(0.5))
    assert len(compiled(0.5).sources) == 5


def test_op_that_cannot_read_its_number_as_a_tensor_is_left_out() -> None:
    script = Script()
    source, number = script.source((SIZE,)), ScalarHole()
    value = script.op("aten.clamp.default", source, args=[HOLE, number], scalars=(0.5,))
    program = script.program(keep=(script.op("aten.exp.default", value),))
    assert [region.first for region in find_regions(program, [1.0] * 2, {0}, ANY_SIZE)] == [1]
