"""What one end sends, the other makes whole again; what repeats costs next to nothing."""

from __future__ import annotations

import msgspec
import pytest
from drawn_programs import build, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import HOLE, LAYER, Script

from djinn_lab.srg.delta import DeltaDecoder, DeltaEncoder
from djinn_lab.srg.program import (
    ComplexNumber,
    NodeRecord,
    Program,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorMeta,
    encode_program,
)
from djinn_lab.srg.remembered import DeltaError

STATE = bytes(range(256)) * 20
scalars = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.builds(ComplexNumber, st.floats(-1, 1), st.floats(-1, 1)),
)


programs = st.builds(
    build,
    steps,
    size=st.integers(0, 40),
    keep_every=st.integers(1, 5),
    first_id=st.integers(0, 2**40),
    uploaded=st.booleans(),
)


class Wire:
    """Both ends; ``sent`` holds the lengths."""

    def __init__(self, bytes_max: int = 2**24) -> None:
        self.encoder, self.decoder = DeltaEncoder(bytes_max), DeltaDecoder(bytes_max)
        self.sent: list[int] = []

    def send(self, program: Program) -> None:
        data = self.encoder.encode(program)
        assert data is not None
        self.sent.append(len(data))
        assert self.decoder.decode(data) == encode_program(program)
        self.encoder.arrived()


def training_step(turn: int, first: int, steps: int = 1, length: int = 8, rate: float = 0.1) -> Program:
    """Parameters 0..19 stay; everything else is new each time, in a loop of ``steps``."""
    metas = [TensorMeta("float32", (length, 4), (4, 1)), TensorMeta("float32", (4, length), (1, 4))]
    templates = [
        Template("aten.add.Tensor", [HOLE, HOLE], {"alpha": ScalarHole()}),
        Template("aten.view.default", [HOLE, [length, 4]], {}),
    ]
    scopes = [
        Scope(f"Net.{turn % 1}", turn * steps + step + 1, f"In [{turn}]", 3, "forward")
        for step in range(steps)
    ]
    sources = [Source(value, value, 0, "weight", None) for value in range(20)]
    nodes, new = [], first
    before = first - 2
    for step in range(steps):
        for index in range(30):
            new += 2
            older = new - 2 if index else before
            nodes.append(
                NodeRecord(
                    index % 2,
                    (index % 20, older)[: 2 - index % 2],
                    (new,),
                    (index % 2,),
                    (new - 1,),
                    step,
                    (rate,) if index % 2 == 0 else (),
                )
            )
    sources.append(Source(before, before, 0, "activation", None))
    return Program(metas, templates, scopes, sources, nodes, keep=[new], release=[before], rng_state=None)


@settings(deadline=None)
@given(
    st.lists(st.tuples(programs, st.integers(0, 3)), min_size=1, max_size=6),
    st.sampled_from((0, 300, 2**24)),
)
def test_any_sequence_of_programs_arrives_as_it_was(drawn: list[tuple[Program, int]], bytes_max: int) -> None:
    wire = Wire(bytes_max)
    for program, again in drawn:
        for _ in range(again + 1):
            wire.send(program)


@settings(deadline=None)
@given(st.lists(st.lists(scalars, min_size=6, max_size=6), min_size=2, max_size=5))
def test_any_change_of_scalars_arrives(rows: list[list[object]]) -> None:
    wire = Wire()
    template = Template("aten.add.Tensor", [HOLE, ScalarHole()], {})
    for turn, row in enumerate(rows):
        nodes = [NodeRecord(0, (0,), (i + 1,), (0,), (i + 1,), 0, (value,)) for i, value in enumerate(row)]  # type: ignore[arg-type]
        meta = TensorMeta("float32", (2,), (1,))
        wire.send(
            Program(
                [meta],
                [template],
                [Scope("", 0, str(turn), 1, "other")],
                [Source(0, 0, 0, "input", None)],
                nodes,
            )
        )


def test_an_iteration_that_repeats_costs_a_hundredth() -> None:
    wire = Wire()
    for turn in range(6):
        wire.send(training_step(turn, 1000 + 62 * turn, rate=0.1 / (turn + 1)))
    whole = len(encode_program(training_step(1, 1000, rate=0.1)))
    assert max(wire.sent[3:]) < 80
    assert whole > 900


def test_sizes_that_grow_steadily_cost_nothing() -> None:
    wire = Wire()
    for turn in range(8):
        wire.send(training_step(turn, 1000 + 62 * turn, length=8 + turn))
    assert max(wire.sent[4:]) < 80


def test_parts_with_different_numbers_of_iterations_share_their_blocks() -> None:
    wire = Wire()
    first = 1000
    for turn, count in enumerate((8, 5, 12, 7, 9)):
        wire.send(training_step(turn, first, steps=count))
        first += 60 * count + 2
    whole = len(encode_program(training_step(1, 1000, steps=9)))
    assert wire.sent[-1] < whole / 20


def test_a_random_state_that_came_back_is_not_sent_again() -> None:
    wire = Wire()
    program = msgspec.structs.replace(training_step(0, 1000), rng_state=STATE)
    wire.send(program)
    for end in (wire.encoder, wire.decoder):
        end.saw_state(STATE)
    wire.send(program)
    assert wire.sent[0] > len(STATE) > wire.sent[1]


def test_equal_entries_and_inline_bytes() -> None:
    wire = Wire()
    script = Script(0, LAYER)
    source = script.source((4,))
    for _ in range(3):
        script.op("aten.relu.default", source, shape=(4,))
    program = script.program()
    held = Source(source, source, program.sources[0].meta, "input", None, b"x" * 16)
    program = msgspec.structs.replace(program, sources=[held])
    for _ in range(3):
        wire.send(program)
    assert wire.sent[2] < wire.sent[0] / 4


def test_numbers_beyond_measure_are_left_to_the_plain_form() -> None:
    wire = Wire()
    program = training_step(0, 1000)
    assert wire.encoder.encode(msgspec.structs.replace(program, release=[2**62])) is None
    wire.send(program)
    wire.send(program)


def test_what_did_not_arrive_is_sent_again() -> None:
    wire = Wire()
    wire.send(training_step(0, 1000))
    assert wire.encoder.encode(training_step(1, 1062)) is not None  # an interrupt came before it was sent
    wire.send(training_step(2, 1124))
    wire.send(training_step(3, 1186))
    assert wire.sent[1] > 900 > wire.sent[2]


def test_what_is_not_remembered_or_no_delta_is_refused() -> None:
    wire = Wire()
    wire.send(training_step(0, 1000))
    data = wire.encoder.encode(training_step(1, 1062))
    assert data is not None
    with pytest.raises(DeltaError, match="not remembered"):
        DeltaDecoder().decode(data)
    for broken in (b"", b"\xc0", data[:-3], msgspec.msgpack.encode([0, True, None, [1, 2]])):
        with pytest.raises(DeltaError):
            DeltaDecoder().decode(broken)


@settings(deadline=None)
@given(st.data())
def test_damaged_bytes_never_do_more_than_be_refused(data: st.DataObject) -> None:
    wire = Wire()
    wire.send(training_step(0, 1000))
    program = training_step(1, 1063, rate=0.2)
    sent = bytearray(wire.encoder.encode(program) or b"")
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    try:
        assert wire.decoder.decode(bytes(sent)) == encode_program(program)
    except DeltaError:
        return
