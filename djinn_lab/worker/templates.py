"""From op templates (data) to calls. Only allow-listed ATen overloads are looked up; nothing is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec
import torch
from torch._ops import OpOverload

from djinn_lab.errors import Refused
from djinn_lab.srg.ops import allowed_ops, base_name, may_draw, parameters, written_holes
from djinn_lab.srg.program import Argument, Atom, ComplexNumber, Scalar, ScalarHole, Template, TensorHole
from djinn_lab.worker.accelerator.device import generators, is_accelerator
from djinn_lab.worker.accelerator.draws import seeded
from djinn_lab.worker.accelerator.kernels import find_kernel, own_results
from djinn_lab.worker.executor import Executor, Op
from djinn_lab.worker.guards import find_guard
from djinn_lab.worker.transfer import zero_memory

Build = Callable[[Iterator[torch.Tensor | None], Iterator[Scalar]], Any]

_NUMBER_KINDS = (bool, int, float, str, type(None))


_UNINITIALISED = ("aten.empty", "aten.new_empty", "aten.resize_")
"""Ops that return memory as they find it: it is zeroed, since it may have been another user's."""


_CHECKED = {"aten._reshape_alias.default": "aten.as_strided.default"}
"""Ops that trust their caller to stay within a tensor's memory, and those that look."""


_FILLED = (
    *("aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_like.default"),
    *("aten.empty_permuted.default", "aten.new_empty.default", "aten.new_empty_strided.default"),
)
"""Those that fill it themselves where torch's deterministic algorithms ask for that."""


class OpCall(Protocol):
    """What runs one node, as :class:`Call` says."""

    @property
    def op(self) -> str: ...
    @property
    def fresh(self) -> tuple[bool, ...]: ...
    @property
    def writes(self) -> tuple[int, ...]: ...
    @property
    def resizes(self) -> bool: ...
    @property
    def appends(self) -> bool: ...
    @property
    def own(self) -> tuple[int, ...]: ...
    @property
    def native(self) -> Op | None: ...
    def __call__(self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]) -> Any: ...


class Call:
    """A template made ready for one device. ``fresh[i]``: is the i-th return new memory? ``writes``: the
    inputs that it writes, by place; ``resizes``: it may change their size or layout, too. ``appends``: it
    may be a key-value cache's growth, two tensors put together along the last but one of four dimensions.
    ``fills``: its program's settings fill new memory. ``own``: places of results that look as the device's
    kernel has them, whatever capture predicted. ``native``: the same for the extension, None where only
    Python can call it."""

    __slots__ = (
        "_args",
        "_guard",
        "_kwargs",
        "_plain",
        "_zeroed",
        "appends",
        "fresh",
        "func",
        "native",
        "op",
        "own",
        "resizes",
        "writes",
    )

    def __init__(
        self, template: Template, device: torch.device, executor: Executor | None = None, fills: bool = False
    ) -> None:
        self.op = template.op
        func = _lookup(template.op)
        accelerator = is_accelerator(device)
        if accelerator and _makes_elsewhere(template, func._schema):
            template = msgspec.structs.replace(template, kwargs={**template.kwargs, "device": _DEVICE})
        other = find_kernel(template.op) if accelerator else None
        self._guard = None if other is not None else find_guard(template.op, func._schema)
        self._plain = not template.kwargs and all(isinstance(item, TensorHole) for item in template.args)
        self._args = [_builder(argument, device) for argument in template.args]
        self._kwargs = {name: _builder(argument, device) for name, argument in template.kwargs.items()}
        self._zeroed = template.op.startswith(_UNINITIALISED) and not (fills and template.op in _FILLED)
        self.fresh = tuple(returned.alias_info is None for returned in func._schema.returns)
        self.writes = written_holes(template)
        self.resizes = bool(self.writes) and (
            torch.Tag.inplace_view in func.tags or _may_resize(base_name(template.op))
        )
        self.appends = template.op == "aten.cat.default" and template.args in _APPENDING
        remembers_grad_mode = other is None and template.op == "aten.mkldnn_rnn_layer.default"
        self.func = other or (_in_grad_mode(func) if remembers_grad_mode else func)
        self.own = own_results(template.op) if accelerator else ()
        by_python = executor is None or other is not None
        if accelerator and other is None and may_draw(template.op):
            drawing = generators(device)
            if drawing is not None:
                self.func, by_python = seeded(self.func, drawing[device.index or 0]), True
        self.native = None if executor is None or by_python else self._native(executor, template, device)

    def _native(self, executor: Executor, template: Template, device: torch.device) -> Op | None:
        """The same call without Python; None for one that only Python can make, that has a guard, or that
        moves tensors to other memory."""
        if self._guard is not None and not _is_plain_attention(template):
            return None
        _, name, overload = _CHECKED.get(template.op, template.op).split(".")
        if self.resizes and ("resize" in name or name.startswith("set_")):
            return None
        try:
            return executor.Op(
                name,
                "" if overload == "default" else overload,
                [_native_argument(argument, device) for argument in template.args],
                {key: _native_argument(argument, device) for key, argument in template.kwargs.items()},
                TensorHole,
                ScalarHole,
                self.fresh,
                self.writes,
                self.resizes,
                self.appends,
                self._zeroed,
                template.op == "aten.mkldnn_rnn_layer.default",
                template.op == _ATTENTION,
                self.own,
            )
        except (
            RuntimeError,
            TypeError,
            ValueError,
        ):  # a call from Python says what is wrong with it, if anything
            return None

    def __call__(self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]) -> Any:
        if self.writes and len({*map(id, tensors)}) < len(tensors):
            tensors = _apart_from_written(tensors, self.writes)
        returned = self._call(tensors, scalars)
        if self._zeroed and self.fresh[0]:
            zero_memory(returned)
        elif self._zeroed:
            returned.zero_()
        return returned

    def _call(self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]) -> Any:
        if self._guard is not None:
            return self._guard(self.func, *self._arguments(tensors, scalars))
        if self._plain:
            return self.func(*tensors)
        args, kwargs = self._arguments(tensors, scalars)
        return self.func(*args, **kwargs)

    def unguarded(self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]) -> Any:
        """Call it for tensors without memory, which no guard can look at."""
        args, kwargs = self._arguments(tensors, scalars)
        return self.func(*args, **kwargs)

    def _arguments(
        self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]
    ) -> tuple[list[Any], dict[str, Any]]:
        inputs, numbers = iter(tensors), iter(scalars)
        args = [build(inputs, numbers) for build in self._args]
        return args, {name: build(inputs, numbers) for name, build in self._kwargs.items()}


_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def _is_plain_attention(template: Template) -> bool:
    """Return whether the extension can check the call, since it knows which input is what."""
    holes = [isinstance(argument, TensorHole) for argument in template.args]
    named = [name for name, value in template.kwargs.items() if isinstance(value, TensorHole)]
    return (
        template.op == _ATTENTION
        and holes[:3] == [True] * 3
        and not any(holes[3:])
        and named in ([], ["attn_mask"])
    )


_APPENDING = tuple([[TensorHole(), TensorHole()], dimension] for dimension in (-2, 2))


_OVERLAP_IS_OPEN = 2
"""``at::MemOverlap::TooHard``."""


def _apart_from_written(
    tensors: Sequence[torch.Tensor | None], writes: Sequence[int]
) -> Sequence[torch.Tensor | None]:
    """Two tensors that lie alike are one value here. Where torch would let both be given, the one that is
    read becomes another tensor than the one that is written; capture has refused what eager refuses."""
    written = {id(tensors[place]) for place in writes}
    return [
        torch.ops.aten.alias.default(tensor)
        if tensor is not None
        and place not in writes
        and id(tensor) in written
        and (not tensor.numel() or torch._debug_has_internal_overlap(tensor) == _OVERLAP_IS_OPEN)
        else tensor
        for place, tensor in enumerate(tensors)
    ]


def _may_resize(name: str) -> bool:
    """``out=`` arguments are made to fit, tensors of in-place ops stay as they are."""
    return "resize" in name or name.startswith("set_") or not name.endswith("_")


def _in_grad_mode(func: Callable[..., Any]) -> Callable[..., Any]:
    """For the op that computes differently under ``torch.no_grad()``: its last argument says which it was."""

    def call(*args: Any) -> Any:
        with torch.set_grad_enabled(args[-1]):
            return func(*args)

    return call


@cache
def lacking_ops() -> tuple[str, ...]:
    """Return the ops that a graph may name, and that this process's torch does not have."""
    known = set(torch._C._dispatch_get_all_op_names())
    return tuple(sorted(op for op in allowed_ops() if _registered_name(op) not in known))


def _registered_name(op: str) -> str:
    """``aten::add.Tensor`` for ``aten.add.Tensor``, ``aten::relu`` for ``aten.relu.default``."""
    _, name, overload = op.split(".")
    return f"aten::{name}" if overload == "default" else f"aten::{name}.{overload}"


def _takes_as_listed(op: str, schema: torch.FunctionSchema) -> bool:
    """Return whether a torch takes for an op what the table of ops says, whatever it calls the arguments."""
    listed = [one for one in parameters(op) if not one.keyword_only]
    taken = [one for one in schema.arguments if not one.kwarg_only]
    by_name = {one.name for one in schema.arguments if one.kwarg_only}
    return (
        [one.kind.startswith("Tensor") for one in listed]
        == ["Tensor" in str(one.type) for one in taken[: len(listed)]]
        and all(one.has_default_value() for one in taken[len(listed) :])
        and by_name >= {one.name for one in parameters(op) if one.keyword_only}
    )


def _lookup(op: str) -> OpOverload:
    if op not in allowed_ops():
        raise Refused(f"{op} is not on the list of ops that a pool runs.", "Run this cell with %%local.")
    _, name, overload = _CHECKED.get(op, op).split(".")
    try:
        found: OpOverload = getattr(getattr(torch.ops.aten, name), overload)
    except AttributeError:
        raise Refused(
            f"torch {torch.__version__} of this pool has no op {op}, which the notebook's torch has. Install "
            "the same version in both; `djinn-lab doctor` names them."
        ) from None
    if not _takes_as_listed(op, found._schema):
        raise Refused(
            f"torch {torch.__version__} of this pool takes other arguments for {op} than the pool knows.",
            "Run this cell with %%local, or have the pool's torch installed as it was tested: "
            "`djinn-lab doctor` on its machine names the versions.",
        )
    return found


_DEVICE = Atom("device", "cpu")
"""The one that the op runs on, whatever its name."""


def _makes_elsewhere(template: Template, schema: torch.FunctionSchema) -> bool:
    """Return whether the op makes a tensor on the CPU unless it is told where."""
    names = [argument.name for argument in schema.arguments]
    return "device" in names and names[0] not in ("self", "input") and template.kwargs.get("device") is None


def _builder(argument: Argument, device: torch.device) -> Build:
    if isinstance(argument, TensorHole):
        return lambda tensors, scalars: next(tensors)
    if isinstance(argument, ScalarHole):
        return lambda tensors, scalars: _number(next(scalars))
    if isinstance(argument, list):
        items = [_builder(item, device) for item in argument]
        return lambda tensors, scalars: [item(tensors, scalars) for item in items]
    constant = _constant(argument, device)
    return lambda tensors, scalars: constant


def _constant(argument: Argument, device: torch.device) -> object:
    if isinstance(argument, Atom):
        if argument.kind == "device":
            return device
        found = getattr(torch, argument.name, None)
        expected = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}[
            argument.kind
        ]
        if not isinstance(found, expected):
            raise Refused(
                f"torch has no {argument.kind} {argument.name!r}.", "Use the same torch version as the pool."
            )
        return found
    if isinstance(argument, ComplexNumber):
        return complex(argument.real, argument.imag)
    assert isinstance(argument, _NUMBER_KINDS)
    return argument


def _native_argument(argument: Argument, device: torch.device) -> object:
    """A constant, or the class of a hole in its place."""
    if isinstance(argument, TensorHole | ScalarHole):
        return type(argument)
    if isinstance(argument, list):
        return [_native_argument(item, device) for item in argument]
    return _constant(argument, device)


def _number(scalar: Scalar) -> complex | float:
    return complex(scalar.real, scalar.imag) if isinstance(scalar, ComplexNumber) else scalar
