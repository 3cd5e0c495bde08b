"""torch's operator database on the stand-in, forward and backward, beside the CPU: the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import standin
import torch
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "standin:0"

UNINITIALISED = "returns memory that nothing has written"
EXCEPTIONS = {
    "empty": UNINITIALISED,
    "empty_like": UNINITIALISED,
    "empty_permuted": UNINITIALISED,
    "empty_strided": UNINITIALISED,
    "new_empty": UNINITIALISED,
    "new_empty_strided": UNINITIALISED,
    "tensor_split": "takes its tensor of indices on the host, on a GPU, too",
    "as_strided_partial_views": "reads beyond the tensor that was moved to the device",
    "sparse_mm_reduce": "the device has no sparse tensors",
    "sparse_sampled_addmm": "the device has no sparse tensors",
    "to_sparse": "the device has no sparse tensors",
}
"""Operators that are no match for the CPU's, each with the reason."""


@dataclass(frozen=True)
class Verdict:
    """``problem`` is empty where the sample's results are the CPU's."""

    operator: str
    sample: int
    problem: str


def operators() -> list[Any]:
    """Return the operators that have float32 on the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]


def judge(op: Any, samples: int) -> Iterator[Verdict]:
    """Yield a verdict for each of the first samples that the CPU computes."""
    taken = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))[:samples]
    for index, sample in enumerate(taken):
        try:
            expected = _run(op, sample, "cpu")
        except Exception:  # noqa: BLE001 - a sample that the CPU refuses says nothing about the device
            continue
        try:
            problem = _difference(_run(op, sample, DEVICE), expected)
        except Exception as error:  # noqa: BLE001 - this is what the verdict is about
            problem = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        yield Verdict(op.formatted_name, index, problem)


def judge_named(name: str, samples: int) -> list[Verdict]:
    """Return the verdicts of the operator with this formatted name, and one more for its races."""
    warnings.simplefilter("ignore")
    verdicts = [verdict for op in operators() if op.formatted_name == name for verdict in judge(op, samples)]
    return [*verdicts, *(Verdict(name, -1, f"race: {race}") for race in standin.races()[:1])]


def _run(op: Any, sample: Any, device: str) -> list[torch.Tensor]:
    """Return results and gradients, on the CPU."""
    args, kwargs = _moved(((sample.input, *sample.args), sample.kwargs), device)
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(0)
    result = sample.output_process_fn_grad(op(*args, **kwargs))
    outs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [tensor.detach().cpu() for tensor in outs + _gradients(op, outs, (args, kwargs))]


def _moved(tree: Any, device: str) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return tree_map(move, tree)


def _gradients(op: Any, outs: list[torch.Tensor], given: Any) -> list[torch.Tensor]:
    wanted = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    losses = [(out.abs() if out.is_complex() else out).double().sum() for out in outs if out.requires_grad]
    if not wanted or not losses or not op.supports_autograd:
        return []
    found = torch.autograd.grad(torch.stack(losses).sum(), wanted, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def _difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    if len(found) != len(expected):
        return f"{len(found)} tensors, the CPU has {len(expected)}"
    for index, (ours, cpus) in enumerate(zip(found, expected, strict=True)):
        forms = [(str(one.dtype), str(one.layout), tuple(one.shape)) for one in (ours, cpus)]
        if forms[0] != forms[1]:
            return f"tensor {index}: {forms[0]}, the CPU has {forms[1]}"
        if not torch.equal(_plain(ours), _plain(cpus)):
            return f"tensor {index}: other values"
    return ""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    if dense.dtype is torch.complex32:
        dense = dense.to(torch.complex64)
    return torch.nan_to_num(dense, nan=7.0)
