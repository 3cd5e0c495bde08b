"""The loop of the C++ extension and the loop in Python are one interpreter: same results, same failures, same
counts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import product

import msgspec
import pytest
import torch
from audit import audit
from comparing import Left, summary
from programs import HOLE, Script, contiguous
from random_programs import SIZE, RandomPrograms
from replaced_kernels import Kernel
from worker_kit import MIB, Device, read_fetched

from djinn_lab.protocol.worker import Resume
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import ComplexNumber, Program, ScalarHole, TensorMeta, encode_program
from djinn_lab.worker.outcome import Outcome, StopSignal

MakeDevice = Callable[..., Device]
Build = Callable[[Script, int], object]
MATRIX = torch.arange(12.0).view(3, 4)
NUMBER = ScalarHole()
compares = pytest.mark.parametrize("native", ["native"], indirect=True)


@pytest.fixture
def both(make_device: MakeDevice) -> tuple[Device, Device]:
    """A device with the extension, and one without."""
    return make_device(native=True), make_device(native=False)


def run_on(both: tuple[Device, Device], program: Program) -> list[Outcome]:
    return [device.try_run("ann", program, StopSignal()) for device in both]


def one_op(build: Build, tensor: torch.Tensor = MATRIX) -> Program:
    """Return a program of a clone and the op that ``build`` adds, which keeps all values."""
    script = Script()
    value = script.load(tensor)
    script.op("aten.clone.default", value)
    build(script, value)
    return script.program(keep=tuple(script.metas))


FAULTS: dict[str, Build] = {
    "shapes do not fit": lambda script, value: script.op("aten.mm.default", value, value),
    "an index": lambda script, value: script.op(
        "aten.select.int", value, args=[HOLE, 0, 7], shape=(4,), view=True
    ),
    "an argument of another type": lambda script, value: script.op(
        "aten.add.Tensor", value, args=[HOLE, "x"]
    ),
    "an argument is missing": lambda script, value: script.op("aten.add.Tensor", value, args=[HOLE]),
    "a number of another type": lambda script, value: script.op(
        "aten.leaky_relu.default", value, args=[HOLE, NUMBER, NUMBER], scalars=(1.0, 2.0)
    ),
    "a number is missing": lambda script, value: script.op(
        "aten.mul.Tensor", value, args=[HOLE, NUMBER], scalars=()
    ),
    "another shape than predicted": lambda script, value: script.op("aten.neg.default", value, shape=(3, 5)),
    "another dtype than predicted": lambda script, value: script.op(
        "aten.neg.default", value, meta=contiguous(3, 4, dtype="float64")
    ),
    "too large for the device": lambda script, value: script.op(
        "aten.new_zeros.default", value, args=[HOLE, [MIB, 64]], shape=(MIB, 64)
    ),
    "too large for the machine": lambda script, value: script.op(
        "aten.new_zeros.default", value, args=[HOLE, [2**50]], shape=(1,)
    ),
    "a write that fails": lambda script, value: script.write(
        "aten.copy_.default", value, script.load(torch.ones(5))
    ),
}


@compares
@pytest.mark.parametrize("fault", FAULTS)
def test_both_loops_report_a_fault_alike(both: tuple[Device, Device], fault: str) -> None:
    program = one_op(FAULTS[fault])
    here, there = run_on(both, program)
    assert here.failure is not None
    assert there.failure is not None
    assert (here.failure.message, here.failure.node) == (there.failure.message, 1)
    assert summary(here) == summary(there)
    assert both[0].memory() == both[1].memory()
    for device in both:
        audit(device)


NUMBERS = (2, -3, 0.3, True, 2**40, float("inf"))
DTYPES = ("float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")


@compares
@pytest.mark.parametrize("op", ["add", "mul", "div", "pow"])
def test_numbers_promote_alike_as_constants_and_filled_in(both: tuple[Device, Device], op: str) -> None:
    for dtype, number in product(DTYPES, NUMBERS):
        tensor = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, dtype))
        overload = getattr(getattr(torch.ops.aten, op), "Tensor_Scalar" if op == "pow" else "Tensor")
        try:
            meta = TensorMeta(str(overload(tensor, number).dtype).removeprefix("torch."), (2, 3), (3, 1))
        except RuntimeError:
            meta = contiguous(2, 3)
        script = Script()
        value = script.load(tensor)
        name = f"aten.{op}.{overload._overloadname}"
        constant = script.op(name, value, meta=meta, args=[HOLE, number])
        filled = script.op(name, value, meta=meta, args=[HOLE, NUMBER], scalars=(number,))
        here, there = run_on(both, script.program(fetch=(constant, filled)))
        assert summary(here) == summary(there), (dtype, number)


@compares
def test_bytes_that_are_no_program_are_refused_with_a_known_key_as_without(
    both: tuple[Device, Device],
) -> None:
    encoded = encode_program(one_op(lambda script, value: script.op("aten.neg.default", value)))
    interpreter = both[0].interpreter
    first = interpreter.run("ann", encoded, {}, StopSignal(), lambda done, total: None, b"key")
    assert first.failure is None
    for end in range(1, len(encoded)):
        with pytest.raises(msgspec.DecodeError):
            interpreter.run("bob", encoded[:end], {}, StopSignal(), lambda done, total: None, b"key")


@compares
def test_lists_with_numbers_and_absent_tensors(both: tuple[Device, Device]) -> None:
    script = Script()
    value = script.load(MATRIX)
    index = script.load(torch.tensor([0, 2]))
    scaled = script.op("aten._foreach_mul.ScalarList", value, args=[[HOLE], [NUMBER]], scalars=(2.5,))
    picked = script.op("aten.index.Tensor", scaled, index, args=[HOLE, [None, HOLE]], shape=(3, 2))
    here, there = run_on(both, script.program(fetch=(scaled, picked)))
    assert here.failure is None
    assert summary(here) == summary(there)


@compares
@pytest.mark.parametrize("seed", range(30))
def test_random_programs_leave_and_count_the_same(both: tuple[Device, Device], seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    for index in range(2):
        square = torch.randn(SIZE, SIZE, generator=made)
        for device in both:
            device.blob(square, f"blob{index}")
    sessions = {"ann": 1, "bob": 5000}
    programs = {
        name: RandomPrograms(7000 + seed, ["blob0", "blob1"], first_id) for name, first_id in sessions.items()
    }
    for _ in range(8):
        keys = set()
        for session, made_up in programs.items():
            program = made_up.next()
            keys.add(key := plan_key(encode_program(program)))
            here, there = (device.try_run(session, program, StopSignal(), key=key) for device in both)
            assert summary(here) == summary(there)
            left = [Left.of(device.interpreter.values_of(session)) for device in both]
            assert left[0] == left[1]
            assert both[0].memory() == both[1].memory()
            audit(both[0])
        assert len(keys) == 1  # the second session's programs ran by the plan of the first's


@compares
def test_program_with_a_known_plan_reports_the_values_that_its_session_lacks(
    both: tuple[Device, Device],
) -> None:
    script = Script()
    value = script.load(MATRIX)
    kept = script.op("aten.neg.default", value)
    first = script.program(keep=(value, kept))
    total = script.op("aten.add.Tensor", value, kept)
    second = script.program(fetch=(total,))
    for device in both:
        device.run("ann", first)
        assert device.try_run("ann", second, StopSignal(), key=b"key").failure is None
    here, there = (device.try_run("bob", second, StopSignal(), key=b"key") for device in both)
    assert summary(here) == summary(there)
    assert here.failure is not None
    assert here.failure.missing == [value, kept]


@compares
def test_program_with_a_known_plan_takes_numbers_of_its_own(both: tuple[Device, Device]) -> None:
    for number in (
        1.5,
        ComplexNumber(1.0, -2.0),
        2.5,
        1.5,
        2,
        True,
        1,
        1.0,
        -0.0,
        0.0,
        float("inf"),
        *range(70),
        1.5,
    ):
        script = Script()
        value = script.load(MATRIX.to(torch.complex64))
        scaled = script.op("aten.mul.Tensor", value, args=[HOLE, NUMBER], scalars=(number,))
        program = script.program(fetch=(scaled,))
        here, there = (device.try_run("ann", program, StopSignal(), key=b"key") for device in both)
        assert here.failure is None
        assert summary(here) == summary(there)


@pytest.mark.parametrize("seed", range(10))
def test_a_signal_from_inside_an_op_stops_before_the_next(
    make_device: MakeDevice, kernel: Kernel, seed: int
) -> None:
    choose = random.Random(seed)
    stop_in = choose.randrange(20)
    signal = StopSignal()
    ran: list[int] = []

    def compute(tensor: torch.Tensor) -> torch.Tensor:
        if len(ran) == stop_in:
            thread = threading.Thread(target=signal.ask, args=("preempted",))
            thread.start()
            thread.join()
        ran.append(1)
        return tensor + 1

    kernel("trunc", compute)
    device = make_device()
    script = Script()
    value = script.load(torch.zeros(10))
    for _ in range(20):
        value = script.op("aten.trunc.default", value)
    program = script.program(fetch=(value,))
    stopped = device.try_run("ann", program, signal)
    assert (stopped.stopped, stopped.executed) == ("preempted", stop_in + 1) if stop_in < 19 else (None, 20)
    if stop_in < 19:
        assert device.memory().session_bytes == {"ann": 40}
        stopped = device.try_run("ann", program, StopSignal(), Resume(stopped.executed))
    assert stopped.fetched[0].data == torch.full((10,), 20.0).numpy().tobytes()
    assert len(ran) == 20


def test_memory_of_a_running_program_is_counted_while_it_runs(
    make_device: MakeDevice, kernel: Kernel
) -> None:
    """Also where a loaded value is not needed any more but one of its views is."""
    device = make_device()
    seen: list[tuple[int, int]] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        memory = device.memory()
        seen.append((memory.session_bytes["ann"], memory.used_bytes))
        return tensor.clone()

    kernel("trunc", look)
    script = Script()
    value = script.load(torch.zeros(4, 6))
    turned = script.op("aten.t.default", value, meta=TensorMeta("float32", (6, 4), (1, 6)), view=True)
    script.op("aten.trunc.default", turned, meta=TensorMeta("float32", (6, 4), (1, 6)))
    kept = script.op("aten.mul.Tensor", turned, shape=(6, 4), scalars=(2.0,))
    script.op("aten.trunc.default", kept)
    device.run("ann", script.program(keep=(kept,)))
    # the program's source, and what the op was about to make; then the source has gone with its last view
    assert seen == [(96, 192), (96, 192)]
    assert device.memory().session_bytes == {"ann": 96}
    assert device.memory().peak_bytes == 192


def test_a_long_program_reports_now_and_then_without_being_asked_between_ops(
    make_device: MakeDevice, kernel: Kernel
) -> None:
    slow = threading.Event()
    kernel("trunc", lambda tensor: slow.wait(0.06) or tensor.clone())
    device = make_device()
    script = Script()
    value = script.load(torch.zeros(1))
    for _ in range(3):
        value = script.op("aten.trunc.default", value)
    reports: list[tuple[int, int]] = []
    outcome = device.interpreter.run(
        "ann", encode_program(script.program()), {}, StopSignal(), lambda *report: reports.append(report)
    )
    assert outcome.failure is None
    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]


@compares
def test_what_a_program_releases_and_does_not_read_is_free_for_its_ops(make_device: MakeDevice) -> None:
    """As in eager torch, where a name is bound anew before the ops that follow."""
    size = 24 * MIB // 4
    for device in (make_device(memory_bytes=56 * MIB, native=native) for native in (True, False)):
        script = Script()
        state = script.load(torch.ones(2 * MIB))
        old = script.op("aten.new_zeros.default", state, args=[HOLE, [size]], shape=(size,))
        device.run("ann", script.program(keep=(state, old)))
        for _ in range(3):  # from the second on with a known plan
            after = script.op("aten.add.Tensor", state, args=[HOLE, NUMBER], scalars=(1.0,))
            made = script.op("aten.new_zeros.default", after, args=[HOLE, [size]], shape=(size,))
            program = script.program(keep=(after, made), fetch=(after,), release=(state, old))
            outcome = device.try_run("ann", program, key=plan_key(encode_program(program)))
            assert outcome.failure is None, outcome.failure
            state, old = after, made
        (fetched,) = outcome.fetched
        assert torch.equal(read_fetched(fetched, device.results), torch.full((2 * MIB,), 4.0))
        assert device.interpreter.memory.used_bytes == 32 * MIB
