"""What is called: torch's own samples, and copies of them with every tensor's memory as it lies."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils import _pytree as pytree

SEED = 20_000
# For each sample torch looks for a unittest on the stack, where there is none, and reads the source of every
# frame on the way: nine tenths of the time that all this took.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

MORE_DTYPES = (torch.float64, torch.complex64, torch.int64, torch.bool, torch.bfloat16)


@dataclass(frozen=True)
class Sample:
    """``index`` counts the samples of one operator and dtype."""

    index: int
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tree(self) -> Any:
        return self.input, self.args, self.kwargs


def operators(only: str | None = None) -> list[Any]:
    """Torch's operator database, in its own order; ``only``: a name, with or without its variant."""
    return [op for op in op_db if only in (None, op.name, op.formatted_name)]


def dtypes(op: Any) -> list[torch.dtype]:
    """float32 for every operator, five more for a fixed third of them, where torch supports them."""
    wanted = [torch.float32]
    if zlib.crc32(op.formatted_name.encode()) % 3 == 0:
        wanted += MORE_DTYPES
    supported = op.supported_dtypes("cpu")
    return [dtype for dtype in wanted if dtype in supported]


def samples(op: Any, dtype: torch.dtype, gradients: bool = False) -> Iterator[Sample]:
    torch.manual_seed(SEED)
    for index, item in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradients)):
        yield Sample(index, item.input, tuple(item.args), dict(item.kwargs))


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Copy:
    """A copy of every memory in ``tree``, as flat tensors, made now."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._memories: dict[int, torch.Tensor] = {}
        for tensor in tensors_of(tree):
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._memories:
                    flat = torch.empty(0, dtype=tensor.dtype).set_(storage.clone())
                    self._memories[storage._cdata] = flat

    def tree(self, convert: Callable[[torch.Tensor], torch.Tensor] = lambda memory: memory) -> Any:
        """The tree with its tensors on the copied memory, or on what ``convert`` makes of it: layouts, shared
        memory, conjugation and ``requires_grad`` are as they were."""
        memories = {key: convert(memory) for key, memory in self._memories.items()}
        done: dict[int, torch.Tensor] = {}

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) not in done:
                done[id(leaf)] = _placed(leaf, memories)
            return done[id(leaf)]

        return pytree.tree_map(place, self._tree)


def _placed(tensor: torch.Tensor, memories: dict[int, torch.Tensor]) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    found = memories[tensor.untyped_storage()._cdata]
    with torch.no_grad():
        if found.dtype != tensor.dtype:
            found = found.view(tensor.dtype)
        if tensor.storage_offset() or tensor.shape != found.shape or tensor.stride() != found.stride():
            offset = found.storage_offset() + tensor.storage_offset()
            found = found.as_strided(tensor.shape, tensor.stride(), offset)
        if tensor.is_conj():
            found = found.conj()
        if tensor.is_neg():
            found = torch._neg_view(found)
    return found.detach().requires_grad_() if tensor.requires_grad else found
