"""What an op's schema says, looked up once per overload: argument kinds, aliases, writes, randomness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.srg.ops import WRITE_IN_TRAINING, allowed_ops

_NEVER_DRAW = (
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_efficient_attention_backward.default",
)
"""Tagged as random because of their argument for dropout. The first takes nothing but 0 for it, the other is
given what was drawn."""
SHAPE_FROM_SCALAR = {"aten::arange", "aten::range"}


class ArgumentKind(IntEnum):
    STATIC = 0
    TENSOR = 1
    TENSOR_LIST = 2
    SCALAR = 3
    GENERATOR = 4
    SCALAR_LIST = 5


_KINDS = {
    "Tensor": ArgumentKind.TENSOR,
    "List[Tensor": ArgumentKind.TENSOR_LIST,
    "Generator": ArgumentKind.GENERATOR,
    "number": ArgumentKind.SCALAR,
    "float": ArgumentKind.SCALAR,
    "List[number": ArgumentKind.SCALAR_LIST,
}
BROADCASTS_SELF = "aten.addbmm_.default"
FITS_ROWS = "aten._fused_moving_avg_obs_fq_helper.default"
"""Gives the ranges that it writes an element for each channel, at its first call."""
MAKES_SPARSE = "aten._embedding_bag_backward.default"
"""Where it is asked to."""
"""Gives the tensor that it writes the broadcast shape."""
LEAVES_CONJUGATE = "aten.linalg_lu_solve.out"
"""May set the conjugate bit of its ``out=``."""
_SPECIAL = {
    "aten.detach.default",
    "aten.alias.default",
    "aten.lift_fresh.default",
    "aten._pack_padded_sequence.default",
    "aten.mkldnn_rnn_layer.default",
    BROADCASTS_SELF,
    FITS_ROWS,
    MAKES_SPARSE,
    LEAVES_CONJUGATE,
}
_IN_TRUTH = {
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.view.default,
}
"""Ops that make views, which their schema hides from autograd, and the ops that are recorded for them."""
UNDECLARED_WRITES = dict.fromkeys(WRITE_IN_TRAINING, ("running_mean", "running_var"))
"""Writes that torch's schema does not declare, and that are done only in training."""
TRAINING = "training"
"""The argument that says so."""


def _is_composite(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def _kind(argument: torch._C.Argument, shape_from_scalar: bool) -> ArgumentKind:
    text = str(argument.type).replace("Optional[", "").rstrip("]")
    kind = _KINDS.get(text, ArgumentKind.STATIC)
    return ArgumentKind.STATIC if shape_from_scalar and kind is ArgumentKind.SCALAR else kind


def _return_alias(returned: torch._C.Argument, owner: dict[str, str]) -> tuple[str, bool] | None:
    alias = returned.alias_info
    if alias is None:
        return None
    symbols = [*alias.before_set, *alias.after_set, *owner]  # a list of views names no symbol of its own
    return owner[symbols[0]], alias.is_write


def _as_view(func: OpOverload) -> OpOverload | None:
    """``squeeze`` for ``squeeze_``: the op that makes the view which an in-place view op turns its tensor
    into."""
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
    found = getattr(packet, func._overloadname, None) or getattr(packet, "int", None)  # transpose.int
    aliases = found is not None and any(item.alias_info is not None for item in found._schema.returns)
    return found if aliases else None


def draws(func: OpOverload) -> bool:
    """Return whether an op draws from the random stream."""
    return torch.Tag.nondeterministic_seeded in func.tags and str(func) not in _NEVER_DRAW


class Signature:
    """What capture needs to know of an overload. ``ordinary``: recorded as it is whenever its first argument
    is lazy. ``kinds`` by position and ``keyword_kinds`` by name. ``written``: argument names whose memory the
    op writes, ``written_in_training``: those of them that it writes only then. ``is_out``: writes to ``out=``
    arguments. ``may_resize``: what it writes may get another shape. ``taken_apart``: torch composes it of ops
    that decide whether it returns a view or a copy. ``return_aliases[i]``: (argument name, is a write) for
    the i-th return, None when it is fresh memory."""

    __slots__ = (
        "as_view",
        "func",
        "generator",
        "is_factory",
        "is_out",
        "is_view",
        "keyword_kinds",
        "kinds",
        "may_resize",
        "mutates_layout",
        "name",
        "names",
        "on_pool",
        "ordinary",
        "ordinary_native",
        "random",
        "return_aliases",
        "returns_tensors",
        "sets_storage",
        "taken_apart",
        "writes_first_only",
        "written",
        "written_in_training",
    )

    def __init__(self, func: OpOverload) -> None:
        schema = func._schema
        self.func = func
        self.name = str(func)
        shaped = schema.name in SHAPE_FROM_SCALAR
        self.names = tuple(argument.name for argument in schema.arguments)
        self.kinds = tuple(_kind(argument, shaped) for argument in schema.arguments)
        self.keyword_kinds = dict(zip(self.names, self.kinds, strict=True))
        owner: dict[str, str] = {}
        written: list[str] = []
        for argument in schema.arguments:
            alias = argument.alias_info
            if alias is None:
                continue
            for symbol in alias.before_set:
                owner[symbol] = argument.name
            if alias.is_write:
                written.append(argument.name)
        self.written_in_training = UNDECLARED_WRITES.get(self.name, ())
        self.written = (*written, *self.written_in_training)
        self.writes_first_only = len(self.written) == 1 and self.written[0] == self.names[0]
        self.return_aliases = tuple(_return_alias(returned, owner) for returned in schema.returns)
        self.returns_tensors = all(str(returned.type) == "Tensor" for returned in schema.returns)
        self.is_view = any(alias is not None and not alias[1] for alias in self.return_aliases)
        self.on_pool = self.name in allowed_ops()
        self.is_factory = not any(
            kind in (ArgumentKind.TENSOR, ArgumentKind.TENSOR_LIST) for kind in self.kinds
        )
        self.is_out = any(
            argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
            for argument in schema.arguments
        )
        self.may_resize = self.is_out or self.name in (BROADCASTS_SELF, FITS_ROWS)
        self.random = draws(func)
        self.generator = ArgumentKind.GENERATOR in self.kinds
        self.mutates_layout = torch.Tag.inplace_view in func.tags or schema.name in (
            "aten::resize_",
            "aten::resize_as_",
        )
        self.taken_apart = self.is_view and _is_composite(func.name())
        special = self.mutates_layout or self.generator or self.taken_apart or self.name in _SPECIAL
        self.ordinary = self.on_pool and not special
        self.sets_storage = schema.name == "aten::set_"
        self.ordinary_native = self.on_pool and not self.mutates_layout and self.name not in _SPECIAL
        self.as_view = _as_view(func) if self.mutates_layout else None

    def written_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
        """Return the tensors passed, to whose memory the op writes."""
        for name in self.written_names(args, kwargs):
            argument = self.argument(name, args, kwargs)
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if tensor is not None:
                    yield tensor

    def written_names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
        """Return the names of the arguments that a call writes."""
        spared = self.written_in_training
        if spared and self.argument(TRAINING, args, kwargs):
            spared = ()
        return (name for name in self.written if name not in spared)

    def argument(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value passed for ``name``, None when it was left to its default."""
        index = self.names.index(name)
        return args[index] if index < len(args) else kwargs.get(name)


_signatures: dict[int, Signature] = {}
"""By ``id``: overloads live as long as the process, and their own hash is slow."""


def signature_of(func: OpOverload) -> Signature:
    signature = _signatures.get(id(func))
    if signature is None:
        signature = _signatures[id(func)] = Signature(_IN_TRUTH.get(func, func))
    return signature
