"""Programs arrive as they were sent, what repeats costs next to nothing, and strangers' bytes are refused."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys

import msgspec
import pytest
import zstandard
from drawn_programs import build, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import HOLE

from djinn_lab.native import load
from djinn_lab.srg import plan_key as plan_module
from djinn_lab.srg import relative
from djinn_lab.srg.plan_key import plan_key
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
from djinn_lab.srg.relative import NotRelative, Origin, to_relative, to_whole
from djinn_lab.srg.wire import PROGRAM_BYTES_MAX, ProgramReceiver, ProgramSender, WireError

STATE = bytes(range(256)) * 20
DAMAGED_MESSAGES = 3000
needs_native = pytest.mark.skipif(load("wire") is None, reason="the wire extension is not built")
programs = st.builds(
    build,
    steps,
    size=st.integers(0, 40),
    keep_every=st.integers(1, 5),
    first_id=st.integers(0, 2**40),
    uploaded=st.booleans(),
)
ids = st.one_of(st.integers(0, 40), st.integers(0, 2**62 - 1))
origins = st.builds(Origin, ids, ids, ids)
scalars = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.builds(ComplexNumber, st.floats(-1, 1), st.floats(-1, 1)),
)


class Wire:
    """Both ends; ``sent`` holds the lengths."""

    def __init__(self) -> None:
        self.sender, self.receiver = ProgramSender(), ProgramReceiver()
        self.sent: list[int] = []

    def send(self, program: Program) -> None:
        encoded = encode_program(program)
        message = self.sender.encode(encoded)
        assert message is not None
        self.sent.append(len(message))
        assert self.receiver.decode(message) == encoded
        self.sender.arrived()


def training_step(turn: int, first: int, steps: int = 1, length: int = 8, rate: float = 0.1) -> Program:
    """Parameters 0..19 stay; everything else is new each time, in a loop of ``steps``."""
    metas = [TensorMeta("float32", (length, 4), (4, 1)), TensorMeta("float32", (4, length), (1, 4))]
    templates = [
        Template("aten.add.Tensor", [HOLE, HOLE], {"alpha": ScalarHole()}),
        Template("aten.view.default", [HOLE, [length, 4]], {}),
    ]
    scopes = [Scope("Net", turn * steps + step + 1, "In [1]", 3, "forward") for step in range(steps)]
    sources = [Source(value, value, 0, "weight", None) for value in range(20)]
    nodes, new = [], first
    before = first - 2
    for step in range(steps):
        for index in range(30):
            new += 2
            older = new - 2 if index else before
            inputs = (index % 20, older)[: 2 - index % 2]
            numbers = (rate,) if index % 2 == 0 else ()
            nodes.append(NodeRecord(index % 2, inputs, (new,), (index % 2,), (new - 1,), step, numbers))
    sources.append(Source(before, before, 0, "activation", None))
    return Program(metas, templates, scopes, sources, nodes, keep=[new], release=[before], rng_state=None)


@settings(deadline=None)
@given(st.lists(st.tuples(programs, st.integers(0, 3)), min_size=1, max_size=6))
def test_any_sequence_of_programs_arrives_as_it_was(drawn: list[tuple[Program, int]]) -> None:
    wire = Wire()
    for program, again in drawn:
        for _ in range(again + 1):
            wire.send(program)


@settings(deadline=None)
@given(programs, origins, st.lists(scalars, max_size=4))
def test_every_origin_gives_the_program_back(program: Program, origin: Origin, drawn: list[object]) -> None:
    nodes = [msgspec.structs.replace(node, scalars=tuple(drawn)) for node in program.nodes]
    encoded = encode_program(msgspec.structs.replace(program, nodes=nodes, rng_state=STATE, release=[7, 0]))
    for state in (None, STATE, b"another"):
        there = to_relative(encoded, origin, state)
        back = to_whole(there.data, origin, state)
        assert back.data == encoded
        assert back.next == there.next
        assert (len(there.data) < len(STATE)) is (state == STATE) or len(encoded) > 2 * len(STATE)


@needs_native
@settings(deadline=None)
@given(programs, origins, st.sampled_from((None, b"", b"a", STATE)))
def test_the_extension_writes_the_same_bytes(program: Program, origin: Origin, rng: bytes | None) -> None:
    encoded = encode_program(msgspec.structs.replace(program, rng_state=rng))
    for function, slow in ((to_relative, relative._to_relative), (to_whole, relative._to_whole)):
        try:
            expected = slow(encoded, origin, STATE)
        except NotRelative:
            with pytest.raises(NotRelative):
                function(encoded, origin, STATE)
        else:
            assert function(encoded, origin, STATE) == expected
            encoded = expected.data


@needs_native
def test_the_extension_writes_the_same_bytes_of_a_long_program() -> None:
    """It lets other threads run meanwhile, and its output outgrows what it began with."""
    encoded = encode_program(training_step(0, 2**40, steps=500))
    assert len(encoded) > 2**17
    there = to_relative(encoded, Origin())
    assert there == relative._to_relative(encoded, Origin(), None)
    assert len(encoded) > 2 * len(there.data)
    assert to_whole(there.data, Origin()).data == encoded
    assert plan_key(encoded) == hashlib.blake2b(plan_module._material(encoded), digest_size=16).digest()


def test_an_iteration_that_repeats_costs_a_few_bytes() -> None:
    wire = Wire()
    for turn in range(6):
        wire.send(training_step(turn, 1000 + 62 * turn, rate=0.1 / (turn + 1)))
    assert max(wire.sent[3:]) < 90
    assert len(encode_program(training_step(1, 1000))) > 900


def test_sizes_that_grow_cost_a_few_bytes() -> None:
    wire = Wire()
    for turn in range(8):
        wire.send(training_step(turn, 1000 + 62 * turn, length=8 + turn))
    assert max(wire.sent[4:]) < 90


def test_parts_with_different_numbers_of_iterations_share_what_repeats() -> None:
    wire = Wire()
    first = 1000
    for turn, count in enumerate((8, 5, 12, 7, 9)):
        wire.send(training_step(turn, first, steps=count))
        first += 60 * count + 2
    whole = len(encode_program(training_step(1, 1000, steps=9)))
    assert wire.sent[-1] < whole / 100


def test_a_random_state_that_came_back_is_not_sent_again() -> None:
    wire = Wire()
    state = random.Random(0).randbytes(5056)
    program = msgspec.structs.replace(training_step(0, 1000), rng_state=state)
    wire.send(program)
    after = random.Random(1).randbytes(5056)
    for end in (wire.sender, wire.receiver):
        end.saw_state(after)
    wire.send(msgspec.structs.replace(training_step(1, 1062), rng_state=after))
    assert wire.sent[0] > len(state) > 300 > wire.sent[1]


@pytest.mark.parametrize(
    "change",
    [{"release": [2**62]}, {"keep": [-1]}, {"rng_state": b""}],
    ids=["too large", "negative", "empty state"],
)
def test_a_program_without_a_relative_form_arrives_all_the_same(change: dict[str, object]) -> None:
    wire = Wire()
    wire.send(training_step(0, 1000))
    with pytest.raises(NotRelative):
        to_relative(encode_program(msgspec.structs.replace(training_step(0, 1000), **change)), Origin())
    wire.send(msgspec.structs.replace(training_step(0, 1000), **change))
    wire.send(training_step(1, 1062))
    assert wire.sent[-1] < wire.sent[0]


def test_a_stream_begins_anew_when_a_message_did_not_arrive() -> None:
    wire = Wire()
    wire.send(training_step(0, 1000))
    assert wire.sender.encode(encode_program(training_step(1, 1062))) is not None  # an interrupt came then
    wire.send(training_step(2, 1124))
    wire.send(training_step(3, 1186))
    wire.send(training_step(4, 1248))
    assert wire.sent[1] > 300 > 90 > wire.sent[3]


def test_a_program_that_is_too_large_is_left_to_the_plain_message() -> None:
    wire = Wire()
    for turn in range(2):
        assert wire.sender.encode(bytes(PROGRAM_BYTES_MAX)) is None
        wire.sender.arrived()
        wire.send(training_step(turn, 1000 + 62 * turn))


def test_a_stream_is_refused_in_the_middle_and_when_it_says_another_length() -> None:
    wire = Wire()
    wire.send(training_step(0, 1000))
    message = wire.sender.encode(encode_program(training_step(1, 1062)))
    assert message is not None
    with pytest.raises(WireError, match="beginning of the stream"):
        ProgramReceiver().decode(message)
    for broken in (b"", b"\xc0", message[:-3], message[:1] + b"\xff\xff\xff\x7f" + message[5:]):
        with pytest.raises(WireError):
            Wire().receiver.decode(broken)


def test_a_bomb_is_refused_before_it_unfolds() -> None:
    packed = zstandard.ZstdCompressor(level=19).compress(bytes(2**30))
    assert len(packed) < 2**17
    for length in (1000, PROGRAM_BYTES_MAX, 2**32 - 1):
        with pytest.raises(WireError):
            ProgramReceiver().decode(b"\x01" + length.to_bytes(4, "little") + packed)


@pytest.mark.parametrize("native", ["", "off"])
def test_damaged_bytes_never_do_more_than_be_refused(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, which a fault in the extension would end."""
    monkeypatch.setenv("DJINN_LAB_NATIVE", native)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    count = DAMAGED_MESSAGES if native == "" else DAMAGED_MESSAGES // 10
    done = subprocess.run(
        [sys.executable, "-c", f"import test_wire; test_wire.damage({count})"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def damage(count: int) -> None:
    """Flip, cut, repeat and insert bytes at both levels, and feed them to everything that reads."""
    dice = random.Random(0)
    program = encode_program(msgspec.structs.replace(training_step(1, 1063), rng_state=STATE))
    form = to_relative(program, Origin(500, 400, 1)).data
    sender = ProgramSender()
    first = sender.encode(program)
    assert first is not None
    sender.arrived()
    second = sender.encode(encode_program(training_step(2, 1125)))
    assert second is not None
    for _ in range(count):
        whole = damaged(program, dice)
        plan_key(whole)
        for function, data in ((to_whole, damaged(form, dice)), (to_relative, whole)):
            try:
                function(data, Origin(500, 400, 1), dice.choice((None, STATE)))
            except NotRelative:
                continue
        receiver = ProgramReceiver()
        try:
            receiver.decode(dice.choice((first, damaged(first, dice))))
            receiver.decode(damaged(second, dice))
        except WireError:
            continue


def damaged(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(changed))
        match dice.randrange(5):
            case 0:
                changed[place] = dice.randrange(256)
            case 1:
                changed[place] = dice.choice((0xC0, 0xC6, 0xCF, 0xD3, 0xDB, 0xDD, 0xDF, 0x80, 0x90, 0xFF))
            case 2:
                del changed[place + 1 :]
            case 3:
                changed[place:place] = changed[place : place + dice.randrange(40)]
            case _:
                changed[place : place + 8] = dice.randbytes(8)
    return bytes(changed)
