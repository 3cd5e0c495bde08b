"""Shapes without data: what an op will return, known locally and cached.

A :class:`OpPlan` is computed once per (op, input layouts, static arguments) by torch's own fake tensors and
reused for every later call with the same key. Scalars that cannot change a shape are not part of the key,
so a learning rate that changes each step costs nothing. Keys hold interned
:class:`~djinn_lab.capture.values.Layout` objects and literals: no ids, no tensors.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from djinn_lab.capture.arguments import NUMBERS
from djinn_lab.capture.shape_rules.rules import elementwise, is_elementwise, rule_for, stays_as_it_is
from djinn_lab.capture.shape_rules.views import makes_list, views_of
from djinn_lab.capture.shapes import trials
from djinn_lab.capture.shapes.call import Call
from djinn_lab.capture.shapes.kernel_layouts import (
    calls_a_library,
    is_device_dependent,
    kernel_decides,
    may_lack_a_kernel,
    needs_elements,
    refuses_only_shapes,
)
from djinn_lab.capture.shapes.signature import ArgumentKind, Signature
from djinn_lab.capture.shapes.stand_ins import META, fake, meta, no_elements, promoting
from djinn_lab.capture.torch_functions.pool_devices import computes_on_accelerators
from djinn_lab.capture.values import Layout, LazyValue
from djinn_lab.errors import CaptureError
from djinn_lab.srg.program import Argument, Atom, ComplexNumber, Leaf, ScalarHole, Template, TensorHole

_encode_template = msgspec.msgpack.Encoder().encode
_TENSOR, _SCALAR = TensorHole(), ScalarHole()
_CPU = torch.device("cpu")
_UNKNOWN = object()
_ATTENTION = "aten._native_multi_head_attention.default"
_NEEDS_DATA = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


class Output:
    """One returned tensor: fresh memory, a view at ``offset`` of an input, or (``written``) that input
    itself. ``source`` names the argument whose memory it shares; None for fresh memory."""

    __slots__ = ("layout", "offset", "source", "written")

    def __init__(self, layout: Layout, offset: int, source: str | None, written: bool) -> None:
        self.layout = layout
        self.offset = offset
        self.source = source
        self.written = written


class OpPlan:
    """What a call returns. ``outputs`` in order (None where torch returns no tensor; then ``literals`` holds
    what it returned). ``container``: None (a single return), ``tuple`` or ``list``. ``dynamic``: the shapes
    depend on data. ``resized``: for each ``out=`` tensor that torch would resize, its argument, its place in
    a list of such, and what it becomes."""

    __slots__ = ("container", "dynamic", "layouts", "literals", "outputs", "resized", "simple", "template")

    def __init__(
        self,
        template: Template,
        outputs: Sequence[Output | None],
        container: type | None,
        dynamic: bool = False,
        literals: Sequence[object] = (),
        resized: Sequence[tuple[str, int, Layout]] = (),
    ) -> None:
        self.template = template
        self.resized = tuple(resized)
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

    @property
    def packed(self) -> bytes:
        """The template as it travels."""
        return _encode_template(self.template)


def encode_literal(value: object) -> Argument:
    """A static argument as wire data. Raises CaptureError on what cannot be data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return list(value) if all(type(item) is int for item in value) else [_leaf(item) for item in value]
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


def _leaf(value: object) -> Leaf:
    encoded = encode_literal(value)
    assert not isinstance(encoded, list)
    return encoded


def _encode(kind: ArgumentKind, value: Any) -> Argument:
    if value is None:
        return None
    if kind is ArgumentKind.TENSOR:
        return _SCALAR if type(value) in NUMBERS else _TENSOR
    if kind is ArgumentKind.TENSOR_LIST:
        return [None if item is None else _TENSOR for item in value]
    if kind is ArgumentKind.SCALAR:
        return _SCALAR
    if kind is ArgumentKind.SCALAR_LIST:
        return [_SCALAR for _ in value]
    return encode_literal(value)


def make_template(signature: Signature, args: Sequence[object], kwargs: dict[str, object]) -> Template:
    positional = [_encode(kind, value) for kind, value in zip(signature.kinds, args, strict=False)]
    named = {name: _encode(signature.keyword_kinds[name], value) for name, value in kwargs.items()}
    return Template(signature.name, positional, named)


def _promoted_as(argument: object) -> Any:
    """Return the facts that type promotion needs of an argument besides the tensors."""
    return argument if isinstance(argument, (torch.dtype, str)) or argument is None else type(argument)


_ORDINARY = {torch.float32, torch.float64}
_MEMORY_WORDS = "single memory location"
_DTYPE_WORDS = ("dtype", "scalar type", "data type", "same type", "can't be cast")


def _speaks_of_dtypes(error: RuntimeError) -> bool:
    return isinstance(error, NotImplementedError) or any(word in str(error) for word in _DTYPE_WORDS)


def _refuse_memory(call: Call) -> None:
    """Raise what eager says of memory that is written twice, which torch's shape rules do not look at. Other
    errors may be those of the zeros, such as a mask that selects nothing."""
    try:
        trials.raise_like_eager(call)
    except RuntimeError as error:
        if _MEMORY_WORDS in str(error):
            raise
    except (IndexError, ValueError, TypeError):
        pass  # the shape rules know these


class ShapeInference:
    """Turn the arguments of a call into an :class:`OpPlan`. Tensors among them are only placeholders: their
    layouts come from ``values``, the input values in reading order."""

    def __init__(self) -> None:
        self._templates: dict[bytes, Template] = {}
        self._dtypes: dict[tuple[Any, ...], torch.dtype | None] = {}
        self._accepted: set[tuple[Any, ...]] = set()

    @cached_property
    def _mode(self) -> FakeTensorMode:
        """Made for the first op that needs it: torch then imports its compiler, which takes seconds."""
        return FakeTensorMode(allow_non_fake_inputs=False)

    def plan(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        values: Sequence[LazyValue],
    ) -> OpPlan:
        """Return the plan of a call; raise what eager torch would raise for these shapes."""
        template = make_template(signature, args, kwargs)
        template = self._templates.setdefault(_encode_template(template), template)
        call = Call(signature, args, kwargs, values)
        self._refuse_dtypes(call)
        inputs = call.layouts
        if stays_as_it_is(signature, inputs, args) and call.is_apart():
            return OpPlan(template, [Output(inputs[0], 0, signature.names[0], True)], None, literals=[None])
        layouts = self._by_rule(call) if not signature.written or call.is_apart() else None
        if layouts is not None:
            outputs = [None if layout is None else Output(layout, 0, None, False) for layout in layouts]
            returned_as = None if len(outputs) == 1 else tuple
            return OpPlan(template, outputs, returned_as, literals=[None] * len(outputs))
        views = views_of(signature, inputs, args, kwargs) if signature.is_view else None
        if views is not None:
            begin, source = values[0].offset, signature.names[0]
            outputs = [Output(layout, begin + offset, source, False) for layout, offset in views]
            listed = list if makes_list(signature) else None
            return OpPlan(template, outputs, listed, literals=[None] * len(outputs))
        with torch._C.DisableTorchFunction():
            if signature.written and call.may_write_twice() and call.is_small():
                _refuse_memory(call)
            returned = _as_kernels_return(call, self._returned(call))
            resized = self._resized(call) if signature.is_out and returned is not _UNKNOWN else ()
        if returned is _UNKNOWN:
            return OpPlan(template, (), None, dynamic=True)
        return self._describe(signature, template, returned, resized)

    def _refuse_dtypes(self, call: Call) -> None:
        """Torch's shape rules accept dtypes that its kernels refuse: tried once per op and dtypes, on tensors
        without elements, and in another process where the kernel is a library's: these divide by sizes.
        Only an error that speaks of dtypes counts; they may be wrong for other reasons."""
        dtypes = tuple([layout.dtype for layout in call.layouts])
        if call.signature.is_view or not dtypes or (dtypes[0] in _ORDINARY and len(set(dtypes)) == 1):
            return
        if computes_on_accelerators() and may_lack_a_kernel(call.signature):
            return
        kinds = (call.signature, dtypes)
        if kinds in self._accepted:
            return
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the worker's to report
                if not calls_a_library(call.signature):
                    call.run(call.arguments(no_elements, _CPU))  # which draws no random number, either
                elif call.is_small():
                    trials.raise_like_eager(call)
                elif not needs_elements(call.signature):
                    trials.raise_like_eager(call, elements=False)
        except RuntimeError as error:
            if _speaks_of_dtypes(error):
                if not call.is_small():
                    raise
                trials.raise_like_eager(call)
        except (IndexError, ValueError, TypeError):
            pass  # the shape rules know these
        self._accepted.add(kinds)

    def _by_rule(self, call: Call) -> Sequence[Layout | None] | None:
        """Layouts of the new tensors that the op returns, where a rule of our own knows them."""
        inputs = call.layouts
        rule = rule_for(call.signature)
        if rule is not None:
            return rule(inputs, call.args, call.kwargs)
        if not inputs or not is_elementwise(call.signature):
            return None
        dtype = self._elementwise_dtype(call)
        if dtype is None:
            return None
        layouts = elementwise(dtype, inputs)
        if layouts is None and call.is_small():
            trial = trials.tried(call)
            return None if trial is None else [Layout.of_tensor(trial.returned)]
        return layouts

    def _elementwise_dtype(self, call: Call) -> torch.dtype | None:
        """Return the dtype that torch's type promotion gives these inputs: asked once, without elements. None
        when it refuses."""
        kinds = (
            call.signature,
            torch.get_default_dtype(),
            *[(layout.dtype, bool(layout.shape)) for layout in call.layouts],
            *map(_promoted_as, call.args),
            *[(name, _promoted_as(argument)) for name, argument in call.kwargs.items()],
        )
        if kinds not in self._dtypes:
            with torch._C.DisableTorchFunction():
                try:
                    returned = call.run(call.arguments(promoting(call.layouts), _CPU))
                except Exception:  # noqa: BLE001 - torch's refusal; reported for the real shapes
                    returned = None
            known = isinstance(returned, torch.Tensor) and returned.shape == (0,)
            self._dtypes[kinds] = returned.dtype if known else None
        return self._dtypes[kinds]

    def _resized(self, call: Call) -> tuple[tuple[str, int, Layout], ...]:
        """Return the layouts of ``out=`` tensors after the run before. Kernels give them strides that torch's
        shape rules do not know."""
        resized = tuple(call.resized()) if call.trial is None else call.trial.resized
        if call.trial is None and resized and call.is_small():
            trials.tried(call)
        return resized if call.trial is None else call.trial.resized

    def _returned(self, call: Call) -> Any:
        """Return what the op returns for these layouts: meta tensors where the layout cannot depend on the
        device (ten times faster), else fake CPU tensors. ``_UNKNOWN`` when it depends on data."""
        if kernel_decides(call.signature, call.values) and call.is_small():
            trial = trials.tried(call)
            if trial is not None:
                return trial.returned
            if refuses_only_shapes(call.signature):
                trials.raise_like_eager(call)
        device_free = not is_device_dependent(call.signature)
        if call.signature.is_view or (call.signature.returns_tensors and device_free):
            arguments = call.arguments(meta, META)
            try:
                return call.run(arguments)
            except Exception:  # noqa: BLE001 - torch's refusal; fake tensors know how to answer or to report it
                pass
        with self._mode:
            arguments = call.arguments(fake, _CPU)
        try:
            with self._mode, _quiet():
                return call.run(arguments)
        except _NEEDS_DATA:
            return _UNKNOWN
        except Exception:  # torch's refusal again, now reported in eager's own words
            if not call.is_small():
                raise
            trials.raise_like_eager(call)
            return _UNKNOWN

    def _describe(
        self,
        signature: Signature,
        template: Template,
        returned: Any,
        resized: Sequence[tuple[str, int, Layout]],
    ) -> OpPlan:
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
            layout = Layout.of_tensor(item)
            offset = int(item.storage_offset()) if signature.is_view else 0
            source, written = alias if alias is not None else (None, False)
            outputs.append(Output(layout, offset, source, written))
        if any(isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)) for item in literals):
            return OpPlan(template, (), None, dynamic=True)
        return OpPlan(template, outputs, container, literals=literals, resized=resized)


def _as_kernels_return(call: Call, returned: Any) -> Any:
    """Attention without weights: torch's shape rule returns an empty tensor for them, its kernels None."""
    signature = call.signature
    absent = signature.name == _ATTENTION and isinstance(returned, tuple)
    if absent and signature.argument("need_weights", call.args, call.kwargs) is False:
        return (returned[0], None)
    return returned


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs a traceback when a fake op fails; the user gets eager's own error instead."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
