"""Programs that repeat one op, run by the worker's interpreter with the guards before its kernel and
without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

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
from djinn_lab.worker.interpreter import Interpreter

REPEATS = 50
MEMORY_BYTES = 2**28
SCOPE = Scope("", 0, "cell", 1, "other")
Argued = torch.Tensor | Argument


def calls() -> Mapping[str, tuple[str, Sequence[Argued]]]:
    """Return the ops with their arguments, by the names of their figures. Tensors are small, so that what a
    guard costs is not lost in the op's own time."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(32, 64, generator=generator)
    labels = torch.randint(0, 64, (32,), generator=generator)
    softmax, log_softmax = F.softmax(rows, 1), F.log_softmax(rows, 1)
    mean, rstd = rows.mean(1, keepdim=True), rows.var(1, keepdim=True).rsqrt()
    heads = torch.randn(1, 2, 16, 32, generator=generator)
    return {
        "layer_norm, backward": (
            "aten.native_layer_norm_backward.default",
            (rows, rows, [64], mean, rstd, torch.ones(64), torch.zeros(64), [True, True, True]),
        ),
        "softmax, backward": (
            "aten._softmax_backward_data.default",
            (rows, softmax, 1, Atom("dtype", "float32")),
        ),
        "nll_loss, backward": (
            "aten.nll_loss_backward.default",
            (torch.ones(()), log_softmax, labels, None, 1, -100, torch.tensor(32.0)),
        ),
        "embedding_bag": (
            "aten._embedding_bag_forward_only.default",
            (rows, labels % 32, torch.arange(0, 32, 4), False, 0, False, None, False, -1),
        ),
        "attention": (
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            (heads, heads, heads),
        ),
    }


class RepeatedOp:
    """``guarded``: whether the guards are called. Results are those of the last run."""

    def __init__(self, directory: Path, op: str, arguments: Sequence[Argued], guarded: bool) -> None:
        self._program = repeated(op, arguments)
        self._encoded = encode_program(self._program)
        self._key = op.encode()
        self._interpreter = Interpreter(torch.device("cpu"), MEMORY_BYTES, directory)
        if guarded:
            self._run()
        else:
            with mock.patch("djinn_lab.worker.templates.find_guard", return_value=None):
                self._run()  # from here on the interpreter has the calls

    def sample(self) -> float:
        """Return seconds for one op."""
        started = perf_counter()
        self._run()
        return (perf_counter() - started) / REPEATS

    def results(self) -> list[torch.Tensor | None]:
        tensors = self._interpreter.values_of("bench").tensors
        return [tensors[value] for value in self._program.keep]

    def _run(self) -> None:
        outcome = self._interpreter.run("bench", self._encoded, {}, _never, _ignored, self._key)
        assert outcome.failure is None, outcome.failure


def repeated(op: str, arguments: Sequence[Argued]) -> Program:
    """Return a program that calls the op on the same inputs again and again, and keeps the last results."""
    inputs = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    holes: list[Argument] = [TensorHole() if isinstance(one, torch.Tensor) else one for one in arguments]
    results = _eager(op)(*(_plain(argument) for argument in arguments))
    returned = results if isinstance(results, tuple) else (results,)
    metas = [meta_of(tensor) for tensor in (*inputs, *returned)]
    sources = [
        Source(value, value, value, "input", None, tensor.contiguous().numpy().tobytes())
        for value, tensor in enumerate(inputs)
    ]
    count, nodes = len(inputs), list[NodeRecord]()
    for turn in range(REPEATS):
        first = count + turn * len(returned)
        made = tuple(range(first, first + len(returned)))
        places = tuple(range(count, len(metas)))
        nodes.append(NodeRecord(0, tuple(range(count)), made, places, made, 0))
    return Program(metas, [Template(op, holes, {})], [SCOPE], sources, nodes, keep=made)


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


def _eager(op: str) -> Callable[..., Any]:
    _, name, overload = op.split(".")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload)
    return found


def _plain(argument: Argued) -> Any:
    return getattr(torch, argument.name) if isinstance(argument, Atom) else argument


def _never() -> None:
    return None


def _ignored(done: int, total: int) -> None:
    return None
