"""Time one op on a device as workers run it: recorded once, then repeated in a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from djinn_lab.protocol.worker import NodeTimes
from djinn_lab.srg.costs import node_charges
from djinn_lab.srg.families import STREAMED, VIEW, FamilyWork
from djinn_lab.srg.program import (
    Argument,
    Atom,
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
    encode_program,
)
from djinn_lab.worker.accelerator.device import is_accelerator
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal

SESSION = "calibration"
MEMORY_BYTES = 2**40
"""The tensors of probes are few and small; the device's limit is for those of sessions."""
CHAIN_OPS_MIN, CHAIN_OPS = 4, 9
"""Calls of a probed op in one run: of a long one, of any other."""
LONG_S = 0.001
"""Above it an op is likely to be interrupted by other processes."""
ALONE_S = 0.0005
"""Above it the ops before do not matter."""
FIRST_RUNS = 5
KEPT_BYTES = 2**23
"""Of results from this size on every second one is held for a while, so that the next needs other memory."""
GROWN_BYTES = 2**16
FLUSHED_ELEMENTS = 6 * 2**20
"""Read between two first calls: 24 MiB."""
COPIES_MAX, COPIES_BYTES = 8, 16 * 2**20


class RecordedOp(NamedTuple):
    """One op and its tensors."""

    template: Template
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor | None, ...]


class OpRecorder(TorchDispatchMode):
    """Runs torch code for real and keeps its ops."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[RecordedOp] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        items = returned if isinstance(returned, (list, tuple)) else (returned,)
        template = Template(
            str(func),
            [_argument(item) for item in args],
            {name: _argument(item) for name, item in kwargs.items()},
        )
        inputs = tuple(leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor))
        outputs = tuple(item if isinstance(item, torch.Tensor) else None for item in items)
        self.ops.append(RecordedOp(template, inputs, outputs))
        return returned


def _argument(argument: Any) -> Argument:
    if isinstance(argument, (list, tuple)):
        return [_argument(item) for item in argument]  # type: ignore[misc]
    if isinstance(argument, torch.Tensor):
        return TensorHole()
    for kind, name in (
        (torch.dtype, "dtype"),
        (torch.layout, "layout"),
        (torch.memory_format, "memory_format"),
    ):
        if isinstance(argument, kind):
            return Atom(name, str(argument).removeprefix("torch."))  # type: ignore[arg-type]
    if isinstance(argument, torch.device):
        return Atom("device", str(argument))
    result: Argument = argument
    return result


class Sample(NamedTuple):
    """``seconds``: of the op among others, as in a program that repeats them. ``first_s``: what it takes
    longer the first time, when its code is in no cache; None where that was not measured."""

    charge: FamilyWork
    seconds: float
    first_s: float | None = None


class NoMemoryToMeasure(Exception):
    """The device's sessions left a probe no memory."""


class Prober:
    """Times ops on one device. Not for use beside programs of the same process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._interpreter = Interpreter(device, MEMORY_BYTES, Path())
        self._others: list[RecordedOp] = []
        self._flush: list[RecordedOp] = []
        if not is_accelerator(device):
            self._others = _recorded(partial(_other_ops, device))
            self._flush = _recorded(partial(torch.sum, torch.zeros(FLUSHED_ELEMENTS, device=device)))
        self._met: set[str] = set()

    def probe(self, call: Callable[[], object], family: str | None = None) -> Sample | None:
        """Record what the call does and time one of its ops: the last of ``family``, or else the last that
        computes something. None where there is none."""
        for op in reversed(_recorded(call)):
            charge = node_charges(_program([op]))[0][0]
            if charge.family == family or (family is None and charge.family != VIEW):
                charge = replace(charge, first=False)
                seconds = self._seconds(_rotated(op, charge))
                first_s = None
                if charge.family not in self._met and self._device.type == "cpu":
                    self._met.add(charge.family)
                    first_s = max(0.0, self._first_s(op) - seconds)
                return Sample(charge, seconds, first_s)
        return None

    def view(self) -> tuple[float, float]:
        """Time an op that only looks at memory: its seconds, and how much longer it takes the first time."""
        ops = _recorded(partial(torch.ones(8, 8, device=self._device).unsqueeze, 0))
        seconds = self._seconds(ops)
        return seconds, max(0.0, self._first_s(ops[0]) - seconds) if self._others else 0.0

    def _first_s(self, op: RecordedOp) -> float:
        return self._chain_s(self._flush, [op], FIRST_RUNS)

    def _seconds(self, copies: list[RecordedOp]) -> float:
        once = self._chain_s([], copies, CHAIN_OPS_MIN)
        if once > ALONE_S:
            return once
        return self._chain_s(self._others, copies, CHAIN_OPS)

    def _chain_s(self, between: Sequence[RecordedOp], copies: Sequence[RecordedOp], count: int) -> float:
        """Seconds from the start of a probed op to the start of what follows it: the lower quartile of
        ``count``. On a CPU the time is left out in which the thread had lost its core."""
        ops = [op for turn in range(count) for op in (*between, copies[turn % len(copies)])]
        values = self._interpreter.values_of(SESSION)
        for number, tensor in enumerate(_distinct(ops)):
            values.place(number, tensor)
        program = encode_program(_program(ops, keeps=True))
        started, cpu_started = self._now_s(), thread_time()
        outcome = self._interpreter.run(SESSION, program, {}, StopSignal(), _ignore_progress)
        cpu_s, taken_s = thread_time() - cpu_started, self._now_s() - started
        self._interpreter.close(SESSION)
        if outcome.failure is not None and outcome.failure.family == "memory":
            raise NoMemoryToMeasure(outcome.failure.message)
        assert outcome.failure is None, outcome.failure
        if is_accelerator(self._device):
            return taken_s / len(ops)
        times = NodeTimes(node_times=outcome.node_times)
        edges = [*times.node_start_s, times.node_end_s[-1]]
        every = len(between) + 1
        probed = [edges[place + 1] - edges[place] for place in range(every - 1, len(ops), every)]
        seconds = mean(probed) if _is_large(copies[0]) else _quartile(probed)
        return seconds * min(1.0, cpu_s / taken_s) if seconds > LONG_S else seconds

    def _now_s(self) -> float:
        if is_accelerator(self._device):
            torch.accelerator.synchronize(self._device)
        return perf_counter()


def _ignore_progress(done: int, total: int) -> None:
    """A probe is short."""


def _recorded(call: Callable[[], object]) -> list[RecordedOp]:
    recorder = OpRecorder()
    with torch.no_grad(), recorder:
        call()
    return recorder.ops


def _other_ops(device: torch.device) -> None:
    """Small ops of many kinds, whose code replaces that of a probed op in the caches nearest to the core, as
    in programs."""
    x, weight = torch.ones(4, 32, 64, device=device), torch.ones(64, device=device)
    table, places = torch.ones(16, 16, device=device), torch.arange(16, device=device)
    torch.softmax(x, 1)
    torch.layer_norm(x, (64,), weight, weight)
    torch.addmm(weight[:16], table, table.t())
    torch.bmm(x, x.transpose(1, 2))
    torch.conv2d(x[:1].unflatten(1, (4, 8)), x[0, :4, :36].reshape(4, 4, 3, 3))
    torch.cat((x, x)).mean(1)
    torch.where(x > 0, -x, x).transpose(0, 1).contiguous()
    torch.nn.functional.silu(torch.nn.functional.gelu(x[0])).pow(2).rsqrt().cos().tanh().sum(1)
    torch.nn.functional.embedding(places, table).to(torch.float64)
    torch.nn.functional.pad(x, (0, 1))
    torch.isin(places, places).any()
    torch.log_softmax(table, 1)


def _rotated(op: RecordedOp, charge: FamilyWork) -> list[RecordedOp]:
    """The op on copies of its largest tensor, as a program meets other weights with every op."""
    if charge.family not in STREAMED or not op.inputs:
        return [op]
    largest = max(op.inputs, key=torch.Tensor.numel)
    nbytes = largest.numel() * largest.element_size()
    count = min(COPIES_MAX, max(1, COPIES_BYTES // max(nbytes, 1)))
    found = [op]
    for _ in range(count - 1):
        copy = largest.detach().clone()
        inputs = tuple(copy if tensor is largest else tensor for tensor in op.inputs)
        found.append(op._replace(inputs=inputs))
    return found


def _distinct(ops: Sequence[RecordedOp]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for op in ops for tensor in op.inputs}.values())


def _quartile(samples: Sequence[float]) -> float:
    """The lower one: other processes take cores and caches away, and never give any."""
    return sorted(samples)[len(samples) // 4]


def _is_large(op: RecordedOp) -> bool:
    """Whether its results need other memory with every call: large ones, and those of caches that grow."""
    limit = GROWN_BYTES if op.template.op.startswith("aten.cat.") else KEPT_BYTES
    return any(tensor is not None and tensor.nbytes >= limit for tensor in op.outputs)


def _program(ops: Sequence[RecordedOp], keeps: bool = False) -> Program:
    """The ops one after the other, each on its own tensors. What they return is freed at once; with ``keeps``
    every second large result at the end."""
    metas: list[TensorMeta] = []
    sources: list[Source] = []
    numbers: dict[int, int] = {}
    storages: dict[int, int] = {}
    for number, tensor in enumerate(_distinct(ops)):
        numbers[id(tensor)] = number
        storage = storages.setdefault(tensor.untyped_storage()._cdata, number)
        metas.append(_meta(tensor))
        sources.append(Source(number, storage, number, "input", None))
    templates: dict[int, int] = {}
    fresh = len(sources)
    nodes = []
    keep: list[int] = []
    large = 0
    for op in ops:
        large += _is_large(op)
        inputs = tuple(numbers[id(tensor)] for tensor in op.inputs)
        outputs: list[int | None] = []
        output_metas: list[int | None] = []
        lies_in: list[int | None] = []
        for result in op.outputs:
            if result is None:
                for column in (outputs, output_metas, lies_in):
                    column.append(None)
                continue
            value = numbers.get(id(result), fresh)
            if keeps and large % 2 and value == fresh and _is_large(op):
                keep.append(value)
            outputs.append(value)
            output_metas.append(len(metas))
            lies_in.append(storages.get(result.untyped_storage()._cdata, fresh))
            metas.append(_meta(result))
            fresh += 1
        template = templates.setdefault(id(op.template), len(templates))
        nodes.append(NodeRecord(template, inputs, tuple(outputs), tuple(output_metas), tuple(lies_in), 0))
    known = {id(op.template): op.template for op in ops}
    used = [known[name] for name in templates]
    return Program(metas, used, [Scope("", 0, SESSION, 0, "other")], sources, nodes, keep)


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())
