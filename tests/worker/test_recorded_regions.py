"""Regions that are recorded, as CUDA graphs are: with a tape of kernels that reads and writes the memory that
it was recorded with, on a CPU. What a GPU makes of it is a check of ``make sweep-cuda``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from audit import audit
from comparing import Left, summary
from compiling import Compiling
from programs import Script, contiguous
from random_programs import SIZE, RandomPrograms
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from worker_kit import MIB, Device, read_fetched

from djinn_lab.srg.program import Program, ScalarHole, TensorHole
from djinn_lab.worker.compiled.recorded import OBSERVED_RUNS, UNRECORDED_MAX
from djinn_lab.worker.compiled.trial import ROUNDS, RUNS_BEFORE, UNUSED_MAX

MakeDevice = Callable[..., Device]
MakeCompiling = Callable[..., tuple[Compiling, "Recorder"]]
SETTLED = RUNS_BEFORE + OBSERVED_RUNS + 1
"""Runs until a recording was made and checked."""
WEIGHT = torch.linspace(-1.0, 1.0, 16).view(4, 4)


class Tape(TorchDispatchMode):
    """Keeps the calls that it sees, and takes back what they write. ``replays``: how often it ran again."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [
            given
            for argument, given in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self._before += [(tensor, tensor.clone()) for tensor in written]
        made = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, made))
        return made

    def take_back(self) -> None:
        for tensor, before in reversed(self._before):
            tensor.copy_(before)

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, made in self._calls:
            again = func(*args, **kwargs)
            for ours, theirs in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if ours.data_ptr() != theirs.data_ptr():  # a view's memory has what it needs
                    ours.copy_(theirs)


@pytest.fixture
def make_compiling(make_device: MakeDevice) -> Iterator[MakeCompiling]:
    """Give devices that record, and let their recordings go at the end."""
    made: list[Device] = []

    def make(**options: object) -> tuple[Compiling, Recorder]:
        made.append(make_device(**options))
        recorder = Recorder()
        return Compiling(made[-1], record=recorder), recorder

    yield make
    for device in made:
        assert device.interpreter.memory.spare is not None
        device.interpreter.memory.spare()
        audit(device)


class Recorder:
    """Records as :func:`djinn_lab.worker.accelerator.graphs.recorder` does. ``fails``: it cannot."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.fails = False

    def __call__(
        self, run: Callable[[], Sequence[torch.Tensor]]
    ) -> tuple[Callable[[], None], Sequence[torch.Tensor]]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        tape = Tape()
        with tape:
            made = run()
        tape.take_back()
        self.tapes.append(tape)
        return tape.replay, made

    @property
    def replays(self) -> int:
        return sum(tape.replays for tape in self.tapes)


class Layers:
    """A session that holds a weight and runs the same two ops with it on new activations."""

    def __init__(self, compiling: Compiling, name: str = "ann", first_id: int = 1) -> None:
        self._compiling = compiling
        self._name = name
        self._script = Script(first_id)
        self._weight = self._script.load(WEIGHT)
        compiling.run(name, self._script.program(keep=(self._weight,)))

    def forward(self, activation: torch.Tensor) -> tuple[torch.Tensor, str]:
        """Return what the session computes and what the worker says; the numbers must be right."""
        script = self._script
        made = script.op(
            "aten.tanh.default", script.op("aten.mm.default", script.load(activation), self._weight)
        )
        outcome = self._compiling.run(self._name, script.program(fetch=(made,)))
        assert outcome.failure is None, outcome.failure
        [found] = [read_fetched(item, self._compiling.device.results) for item in outcome.fetched]
        assert torch.equal(found, torch.tanh(activation @ WEIGHT))
        return found, outcome.compiled


def activations(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 4, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_never_notice_that_regions_were_recorded(
    make_device: MakeDevice, make_compiling: MakeCompiling, seed: int
) -> None:
    plain, (compiling, recorder) = make_device(), make_compiling()
    made = torch.Generator().manual_seed(seed)
    for index in range(2):
        square = torch.randn(SIZE, SIZE, generator=made)
        for device in (plain, compiling.device):
            device.blob(square, f"blob{index}")
    sessions = {
        f"session {count}": RandomPrograms(seed, ["blob0", "blob1"], 1 + 5000 * count)
        for count in range(SETTLED + 2)
    }
    for _ in range(6):
        for session, random_programs in sessions.items():
            program = random_programs.next()
            here, there = plain.try_run(session, program), compiling.run(session, program)
            assert summary(here) == summary(there)
            assert here.ops_total == there.ops_total
            assert Left.of(plain.interpreter.values_of(session)) == Left.of(
                compiling.device.interpreter.values_of(session)
            )
    assert recorder.replays > 10


def test_region_is_recorded_once_and_runs_with_new_activations(make_compiling: MakeCompiling) -> None:
    compiling, recorder = make_compiling()
    layers = Layers(compiling)
    said = [layers.forward(one)[1] for one in activations(SETTLED + 2 * ROUNDS)]
    assert len(recorder.tapes) == 1
    assert recorder.replays >= ROUNDS
    assert "recorded as CUDA graphs and within 0.0e+00; being measured" in said[SETTLED]


def test_weight_that_lies_elsewhere_is_recorded_anew(make_compiling: MakeCompiling) -> None:
    compiling, recorder = make_compiling()
    ann = Layers(compiling)
    for one in activations(SETTLED):
        ann.forward(one)
    bob = Layers(compiling, "bob", first_id=1000)
    for one in activations(2 * ROUNDS):
        bob.forward(one)
    assert len(recorder.tapes) == 2


def test_sessions_that_take_turns_share_a_recording(make_compiling: MakeCompiling) -> None:
    compiling, recorder = make_compiling()
    sessions = [Layers(compiling, f"session {count}", 1 + 1000 * count) for count in range(2)]
    for one in activations(SETTLED + ROUNDS):
        for session in sessions:
            session.forward(one)
    assert len(recorder.tapes) == 1
    assert recorder.replays >= ROUNDS


def test_region_whose_inputs_do_not_stay_runs_op_by_op(make_compiling: MakeCompiling) -> None:
    compiling, _ = make_compiling()
    alone, *sessions = [Layers(compiling, f"session {count}", 1 + 1000 * count) for count in range(4)]
    for one in activations(SETTLED):
        alone.forward(one)
    said = [
        session.forward(one)[1]
        for one in activations(2 * ROUNDS + UNRECORDED_MAX + UNUSED_MAX)
        for session in sessions
    ]
    assert "run op by op: its inputs lie elsewhere in each run" in said


def test_kernels_that_cannot_be_recorded_run_op_by_op(make_compiling: MakeCompiling) -> None:
    compiling, recorder = make_compiling()
    recorder.fails = True
    layers = Layers(compiling)
    said = [layers.forward(one)[1] for one in activations(SETTLED + UNUSED_MAX)]
    assert said[-1] == (
        "run op by op: it cannot be recorded: operation not permitted when stream is capturing"
    )


def test_recordings_give_their_memory_to_a_cell_that_needs_it(make_compiling: MakeCompiling) -> None:
    compiling, recorder = make_compiling(memory_bytes=8 * MIB)
    script = Script()
    for _ in range(SETTLED + 1):
        made = script.op("aten.ones.default", meta=contiguous(2**18), args=[[2**18]])
        made = script.op("aten.neg.default", script.op("aten.exp.default", made))
        compiling.run("ann", script.program(fetch=(made,)))
    assert recorder.replays
    assert compiling.device.memory().used_bytes > MIB
    large = script.op("aten.ones.default", meta=contiguous(2**21), args=[[2**21]])
    assert compiling.run("ann", script.program(keep=(large,))).failure is None
    assert compiling.device.memory().used_bytes == 8 * MIB


def test_recording_writes_what_its_region_writes_with_the_number_of_each_run(
    make_device: MakeDevice, make_compiling: MakeCompiling
) -> None:
    plain, (compiling, recorder) = make_device(), make_compiling()
    script = Script()
    weight = script.load(WEIGHT)
    programs: list[Program] = [script.program(keep=(weight,))]
    for step in range(3 * SETTLED):
        gradient = script.op("aten.tanh.default", weight)
        script.write(
            *("aten.add_.Tensor", weight, gradient),
            args=[TensorHole(), TensorHole()],
            kwargs={"alpha": ScalarHole()},
            scalars=(-0.1 / (step + 1),),
        )
        programs.append(script.program(fetch=(weight,)))
    for program in programs:
        compiling.run("ann", program)
        plain.run("ann", program)
        ours, theirs = (
            device.interpreter.values_of("ann").tensors[weight] for device in (compiling.device, plain)
        )
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, theirs)
    assert recorder.replays >= ROUNDS
