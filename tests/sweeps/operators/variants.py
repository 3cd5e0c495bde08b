"""The ways in which an operator is called on a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from sweeps.operators.samples import SEED, Sample, tensors_of
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Variant:
    """``tree``: everything the call reads or writes. ``call(tree)`` returns what is compared."""

    name: str
    tree: Any
    call: Callable[[Any], Any]


KINDS = ("call", "inplace", "out", "views", "gradients")


def variants(op: Any, sample: Sample, kinds: Iterator[str] | tuple[str, ...]) -> Iterator[Variant]:
    """All variants but gradients, whose samples are others."""
    if "call" in kinds:
        yield Variant("call", sample.tree, lambda tree: op(tree[0], *tree[1], **tree[2]))
    if "inplace" in kinds and op.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        yield Variant("inplace", sample.tree, lambda tree: _in_place(op, tree))
    if "out" in kinds and op.supports_out:
        yield from _outs(op, sample)
    if "views" in kinds:
        for name, change in VIEWS.items():
            tree = _changed(sample.tree, change)
            if tree is not None:
                yield Variant(name, tree, lambda tree: op(tree[0], *tree[1], **tree[2]))


def _in_place(op: Any, tree: Any) -> Any:
    returned = op.inplace_variant(tree[0], *tree[1], **tree[2])
    return {"the same object": returned is tree[0], "value": returned}


# ---------------------------------------------------------------- out=


def _outs(op: Any, sample: Sample) -> Iterator[Variant]:
    torch.manual_seed(SEED)
    try:
        expected = op(sample.input, *sample.args, **sample.kwargs)
    except Exception:  # noqa: BLE001 - torch's database holds samples that torch refuses
        return
    wanted = tensors_of(expected)
    if not wanted or len(wanted) != len(pytree.tree_leaves(expected)):
        return
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "out": lambda tensor: torch.ones_like(tensor),
        "out, empty": lambda tensor: torch.empty(0, dtype=tensor.dtype),
        "out, wrong dtype": lambda tensor: torch.ones(tensor.shape, dtype=_another(tensor.dtype)),
    }
    for name, make in makers.items():
        targets = [make(tensor.detach()) for tensor in wanted]
        out = targets[0] if isinstance(expected, torch.Tensor) else tuple(targets)
        yield Variant(name, (sample.tree, out), lambda tree: _into(op, tree))


def _another(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype.is_floating_point or dtype.is_complex else torch.bool


def _into(op: Any, tree: Any) -> Any:
    (first, args, kwargs), out = tree
    returned = op(first, *args, **kwargs, out=out)
    same = [one is two for one, two in zip(tensors_of([returned]), tensors_of([out]), strict=False)]
    return {"the same object": same, "value": list(tensors_of([returned]))}


# ---------------------------------------------------------------- views


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor.new_zeros((2 * tensor.shape[0] + 1, *tensor.shape[1:]))
    wide[1::2] = tensor
    return wide[1::2]


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.narrow(-1, 0, 1).clone().expand(tensor.shape)


def _overlapping(tensor: torch.Tensor) -> torch.Tensor:
    elements = 1 + sum(size - 1 for size in tensor.shape)
    return tensor.reshape(-1)[:elements].clone().as_strided(tensor.shape, [1] * tensor.dim())


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": _transposed,
    "sliced": _sliced,
    "expanded": _expanded,
    "overlapping": _overlapping,
}


def _changed(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """None when no tensor of the sample has a dimension that could be laid out otherwise."""
    changed = 0

    def one(leaf: Any) -> Any:
        nonlocal changed
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        if leaf.dim() == 0 or leaf.numel() < 2 or (change is _transposed and leaf.dim() < 2):
            return leaf
        changed += 1
        with torch.no_grad():
            return change(leaf.detach())

    new = pytree.tree_map(one, tree)
    return new if changed else None


# ---------------------------------------------------------------- gradients


def gradients(op: Any, sample: Sample) -> Variant | None:
    """``backward`` from every differentiable output with seeded cotangents; None where there is none."""
    torch.manual_seed(SEED)
    try:
        expected = _differentiable(op(sample.input, *sample.args, **sample.kwargs))
    except Exception:  # noqa: BLE001 - torch's database holds samples that torch refuses
        return None
    if not expected:
        return None
    torch.manual_seed(SEED + 1)
    cotangents = [torch.randn(tensor.shape, dtype=tensor.dtype) for tensor in expected]
    return Variant("gradients", (sample.tree, cotangents), lambda tree: _backward(op, tree))


def _differentiable(returned: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_of([returned]) if tensor.requires_grad]


def _backward(op: Any, tree: Any) -> Any:
    (first, args, kwargs), cotangents = tree
    leaves = [tensor for tensor in tensors_of([first, args, kwargs]) if tensor.requires_grad]
    returned = op(first, *args, **kwargs)
    torch.autograd.backward(_differentiable(returned), cotangents)
    return {"value": list(tensors_of([returned])), "gradients": [leaf.grad for leaf in leaves]}
