"""Is what a captured cell left behind bit for bit what eager torch leaves?"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from in_process import cell

from djinn_lab.capture.recorders import Recorder


def seed(value: int) -> None:
    """Seed every generator that models and tutorials draw from."""
    torch.manual_seed(value)
    np.random.seed(value)
    random.seed(value)


def leaves(tree: object, path: str = "", seen: frozenset[int] = frozenset()) -> dict[str, object]:
    """Tensors, arrays, numbers and strings by where they are; modules and optimizers count as their state."""
    if tree is None or isinstance(tree, (torch.Tensor, np.ndarray, bool, int, float, complex, str, bytes)):
        return {path: tree}
    if isinstance(tree, np.generic):
        return {path: np.asarray(tree)}
    if id(tree) in seen:
        return {}
    seen |= {id(tree)}
    found: dict[str, object] = {}
    for name, child in _children(tree):
        found.update(leaves(child, f"{path}.{name}", seen))
    return found


def _children(tree: object) -> list[tuple[str, object]]:
    if isinstance(tree, torch.nn.Module):
        gradients = [(f"{name}.grad", item.grad) for name, item in tree.named_parameters()]
        return [*tree.state_dict().items(), *gradients]
    if isinstance(tree, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)):
        return list(tree.state_dict().items())
    if isinstance(tree, Mapping):
        return [(str(name), child) for name, child in tree.items()]
    if isinstance(tree, (list, tuple, set, frozenset)):
        return [(str(index), child) for index, child in enumerate(tree)]
    if is_dataclass(tree):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    return []


def difference(found: object, expected: object) -> str | None:
    """Say where two trees differ first, and how; None when they are equal to the last bit."""
    left, right = leaves(found), leaves(expected)
    if list(left) != list(right):
        return f"holds {sorted(set(left) ^ set(right))[:5]} on one side only"
    for path, want in right.items():
        problem = _leaf_difference(left[path], want)
        if problem is not None:
            return f"{path or 'value'}: {problem}"
    return None


def _leaf_difference(got: object, want: object) -> str | None:
    if isinstance(want, torch.Tensor):
        return _tensor_difference(got, want)
    if isinstance(want, np.ndarray):
        if not isinstance(got, np.ndarray) or got.dtype != want.dtype or got.shape != want.shape:
            return f"{got!r} instead of {want!r}"
        return None if got.tobytes() == want.tobytes() else f"{got} instead of {want}"
    same = type(got) is type(want) and (got == want or (got != got and want != want))
    return None if same else f"{got!r} instead of {want!r}"


def _tensor_difference(got: object, want: torch.Tensor) -> str | None:
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__} instead of a tensor"
    if (got.shape, got.dtype, got.requires_grad) != (want.shape, want.dtype, want.requires_grad):
        return (
            f"{tuple(got.shape)} {got.dtype} requires_grad={got.requires_grad} instead of "
            f"{tuple(want.shape)} {want.dtype} requires_grad={want.requires_grad}"
        )
    if _bits(got.detach().cpu()) == _bits(want.detach()):
        return None
    apart = (got.detach().cpu().to(torch.complex128) - want.detach().to(torch.complex128)).abs()
    return f"differs in {int((apart != 0).sum())} of {want.numel()} elements, by up to {apart.max().item():g}"


def _bits(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if not tensor.numel():
        return b""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def check_cell(recorder: Recorder, body: Callable[..., Any], *state: Any, seed_value: int = 7) -> Any:
    """Run ``body(*state)`` in a captured cell and, on a copy of ``state``, eagerly; what it returns, what it
    did to ``state`` and what is left of the random stream must be equal. Returns the captured result."""
    twin = copy.deepcopy(state)
    seed(seed_value)
    expected = body(*twin)
    expected_stream = torch.get_rng_state()
    seed(seed_value)
    with cell(recorder):
        found = body(*state)
    assert difference([found, state], [expected, twin]) is None, difference([found, state], [expected, twin])
    assert torch.equal(torch.get_rng_state(), expected_stream)
    return found
