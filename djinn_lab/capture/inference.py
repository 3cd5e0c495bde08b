"""Shapes without data: what an op will return, known locally and cached.

A :class:`Plan` is computed once per (op, input layouts, static arguments) by torch's own fake tensors and reused for every later call with
the same key. Scalars that cannot change a shape are not part of the key, so a learning rate that changes each step costs
nothing. Keys hold interned :class:`~djinn_lab.capture.values.Layout` objects and literals: no ids, no tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from djinn_lab.capture.arguments import NUMBERS
from djinn_lab.capture.signature import Kind, Signature
from djinn_lab.capture.values import Layout, Value
from djinn_lab.errors import CaptureError
from djinn_lab.srg.program import Argument, Atom, ComplexNumber, ScalarHole, Template, TensorHole

REAL_CHECK_BYTES_MAX = 64 * 2**20
_NEEDS_DATA = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


class Output:
    """One returned tensor: fresh memory, a view at ``offset`` of an input, or (``written``) that input itself.
    ``source`` names the argument whose memory it shares; None for fresh memory."""

    __slots__ = ("layout", "offset", "source", "written")

    def __init__(self, layout: Layout, offset: int, source: str | None, written: bool) -> None:
        self.layout = layout
        self.offset = offset
        self.source = source
        self.written = written


class Plan:
    """``outputs`` in order (None where torch returns no tensor; then ``literals`` holds what it returned).
    ``container``: None (a single return), ``tuple`` or ``list``. ``dynamic``: the shapes depend on data."""

    __slots__ = ("container", "dynamic", "layouts", "literals", "outputs", "simple", "template")

    def __init__(
        self,
        template: Template,
        outputs: Sequence[Output | None],
        container: type | None,
        dynamic: bool = False,
        literals: Sequence[Any] = (),
    ) -> None:
        self.template = template
        self.outputs = tuple(outputs)
        self.container = container
        self.dynamic = dynamic
        self.literals = tuple(literals)
        self.layouts = tuple(None if output is None else output.layout for output in outputs)
        self.simple = (
            container is None
            and len(outputs) == 1
            and outputs[0] is not None
            and outputs[0].source is None
            and not dynamic
        )


def encode_literal(value: Any) -> Argument:
    """A static argument as wire data. Raises CaptureError on what cannot be data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [encode_literal(item) for item in value]
    if isinstance(value, complex):
        return ComplexNumber(value.real, value.imag)
    if isinstance(value, torch.dtype):
        return Atom("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Atom("device", "cpu")
    if isinstance(value, torch.layout):
        return Atom("layout", str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return Atom("memory_format", str(value).removeprefix("torch."))
    raise CaptureError(
        f"an argument of type {type(value).__name__} cannot be sent to the pool.",
        "Run this cell with %%local.",
    )


def _encode(kind: Kind, value: Any) -> Argument:
    if value is None:
        return None
    if kind is Kind.TENSOR:
        return ScalarHole() if type(value) in NUMBERS else TensorHole()
    if kind is Kind.TENSOR_LIST:
        return [None if item is None else TensorHole() for item in value]
    if kind is Kind.SCALAR:
        return ScalarHole()
    if kind is Kind.SCALAR_LIST:
        return [ScalarHole() for _ in value]
    return encode_literal(value)


def make_template(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> Template:
    positional = [_encode(kind, value) for kind, value in zip(signature.kinds, args, strict=False)]
    named = {name: _encode(signature.keyword_kinds[name], value) for name, value in kwargs.items()}
    return Template(signature.name, positional, named)


class ShapeInference:
    """Turns arguments into a :class:`Plan`. Tensors among them are only placeholders: their layouts come from ``values``, the
    input values in reading order."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=False)

    def plan(
        self, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any], values: Sequence[Value]
    ) -> Plan:
        """Raises what eager torch would raise for these shapes."""
        template = make_template(signature, args, kwargs)
        try:
            with torch._C.DisableTorchFunction():
                if signature.is_view:
                    returned = self._run_meta(signature.func, args, kwargs, values)
                else:
                    returned = self._run_fake(signature.func, args, kwargs, values)
        except _NEEDS_DATA:
            return Plan(template, (), None, dynamic=True)
        except Exception as error:  # noqa: BLE001 - whatever torch raises for these shapes is the user's
            self._raise_like_eager(signature, args, kwargs, values, error)
            return Plan(template, (), None, dynamic=True)
        return self._describe(signature, template, returned)

    def _run_fake(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], values: Sequence[Value]) -> Any:
        def fake(value: Value) -> torch.Tensor:
            return torch.empty_strided(value.layout.shape, value.layout.stride, dtype=value.layout.dtype)

        with self._mode, _quiet():
            args, kwargs = _fill(fake, values, args, kwargs)
            return func(*args, **kwargs)

    def _run_meta(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], values: Sequence[Value]) -> Any:
        def meta(value: Value) -> torch.Tensor:
            layout = value.layout
            elements = value.offset + layout.span_bytes // layout.dtype.itemsize
            base = torch.empty(elements, dtype=layout.dtype, device="meta")
            return base.as_strided(layout.shape, layout.stride, value.offset)

        args, kwargs = _fill(meta, values, args, kwargs)
        return func(*args, **kwargs)

    def _raise_like_eager(
        self, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any], values: Sequence[Value], error: Exception
    ) -> None:
        """Run once on real zeros, so that type and text are eager's own. Returns when eager accepts the shapes after all."""
        if sum(value.layout.span_bytes for value in values) > REAL_CHECK_BYTES_MAX:
            raise error

        def real(value: Value) -> torch.Tensor:
            layout = value.layout
            elements = max(1, layout.span_bytes // layout.dtype.itemsize)
            return torch.zeros(elements, dtype=layout.dtype).as_strided(layout.shape, layout.stride)

        state = torch.get_rng_state() if signature.random else None
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                args, kwargs = _fill(real, values, args, kwargs)
                signature.func(*args, **kwargs)
        finally:
            if state is not None:
                torch.set_rng_state(state)

    def _describe(self, signature: Signature, template: Template, returned: Any) -> Plan:
        container = type(returned) if isinstance(returned, (list, tuple)) else None
        items = list(returned) if container is not None else [returned]
        aliases = signature.return_aliases
        outputs: list[Output | None] = []
        literals: list[Any] = []
        for index, item in enumerate(items):
            literals.append(None if isinstance(item, torch.Tensor) else item)
            if not isinstance(item, torch.Tensor):
                outputs.append(None)
                continue
            alias = aliases[index if len(aliases) == len(items) else 0] if aliases else None
            if item.layout is not torch.strided:
                raise CaptureError(
                    f"{signature.name} makes a {item.layout} tensor, which cannot be captured.",
                    "Run this cell with %%local, or use .to_dense() first.",
                )
            layout = Layout.of(item.dtype, tuple(item.shape), item.stride())
            offset = item.storage_offset() if signature.is_view else 0
            source, written = alias if alias is not None else (None, False)
            outputs.append(Output(layout, offset, source, written))
        if any(isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)) for item in literals):
            return Plan(template, (), None, dynamic=True)
        return Plan(template, outputs, container, literals=literals)


def _fill(
    convert: Callable[[Value], torch.Tensor], values: Sequence[Value], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with each tensor replaced by what ``convert`` makes of its value."""
    ready = iter(values)

    def fill(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return convert(next(ready))
        if isinstance(item, (list, tuple)):
            return [fill(part) for part in item]
        return item

    return [fill(item) for item in args], {name: fill(item) for name, item in kwargs.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs a traceback when a fake op fails; the user gets eager's own error instead."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
