"""Recurrent layers as an op for each layer and direction, where all devices of the pool are accelerators.

Torch takes them apart for a CPU, a handful of ops for each step, but for an LSTM of 32-bit numbers. A GPU has
kernels for whole layers (cuDNN)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from djinn_lab.capture.torch_functions.accelerator_forms import dtype_of_kernel, is_cast, may_be_whole
from djinn_lab.capture.torch_functions.replaced import Wanted
from djinn_lab.srg.ops import RECURRENT_MODES

_aten = torch.ops.aten
_LSTM = RECURRENT_MODES["lstm"]
_GATES = {_LSTM: 4, RECURRENT_MODES["gru"]: 3}
State = tuple[Tensor, Tensor]
"""Hidden state and cell; of all but an LSTM the cell is the hidden state again, and nothing reads it."""


class _Layer(torch.autograd.Function):
    """One layer in one direction, over a source of (time, batch, features)."""

    @staticmethod
    def forward(
        ctx: Any, mode: int, reverse: bool, has_biases: bool, source: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        *weights, hidden, cell = rest
        size = hidden.size(-1)
        no_batch_sizes: list[int] = []
        options = (reverse, no_batch_sizes, mode, size, 1, has_biases, False, False, False)
        output, hy, cy, space = _aten.mkldnn_rnn_layer.default(source, *weights, hidden, cell, *options)
        ctx.save_for_backward(source, *weights, hidden, cell, output, hy, cy, space)
        ctx.options = (reverse, mode, size, 1, has_biases, True, False, no_batch_sizes, False)
        ctx.set_materialize_grads(False)
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *given, space = ctx.saved_tensors
        found = _Gradients.apply(ctx.options, space, *given, *grads)  # type: ignore[no-untyped-call]
        wanted = ctx.needs_input_grad[3:]
        return (None, None, None, *[one if wants else None for one, wants in zip(found, wanted, strict=True)])


class _Gradients(torch.autograd.Function):
    """Of a layer. As those of cuDNN, they have none themselves."""

    @staticmethod
    def forward(ctx: Any, options: Sequence[Any], space: Tensor, *given: Tensor | None) -> tuple[Tensor, ...]:
        found = _aten.mkldnn_rnn_layer_backward.default(*given, *options, space)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        raise NotImplementedError(
            "The gradient of a recurrent layer's gradient is not computed on a GPU: cuDNN has none. "
            "Compute the layer under torch.backends.cudnn.flags(enabled=False)."
        )


class _Stack(NamedTuple):
    """What torch gives a recurrent function after its states."""

    parameters: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


def _whole(mode: int, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(source: Any, states: Any, *rest: Any, **named: Any) -> Any:
        stack = _stack(rest, named)
        given = () if stack is None else tuple(states) if mode == _LSTM else (states, states)
        if stack is None or not _is_recorded_whole(mode, source, given, stack):
            return original(source, states, *rest, **named)
        output, hidden, cell = _run(mode, *_cast(source, given, stack))
        return (output, hidden, cell) if mode == _LSTM else (output, hidden)

    return call


def _stack(rest: tuple[Any, ...], named: dict[str, Any]) -> _Stack | None:
    """Return it, None for packed sequences and for calls that are not those of torch's modules."""
    if named or len(rest) != len(_Stack._fields):
        return None
    stack = _Stack(*rest)
    return (
        stack if isinstance(stack.parameters, (list, tuple)) and isinstance(stack.has_biases, bool) else None
    )


def _is_recorded_whole(mode: int, source: Any, given: tuple[Any, ...], stack: _Stack) -> bool:
    tensors = (source, *given, *stack.parameters)
    return (
        may_be_whole()
        and torch.backends.cudnn.enabled
        and len(given) == 2
        and all(isinstance(one, Tensor) and one.is_floating_point() for one in tensors)
        and all(one.device.type == "cpu" for one in tensors)
        and (mode != _LSTM or dtype_of_kernel(source) is not torch.float32)
        and _fits(mode, source, given, stack)
    )


def _fits(mode: int, source: Tensor, given: tuple[Tensor, Tensor], stack: _Stack) -> bool:
    """Return whether all have the shapes of such a stack: torch says of others what is wrong with them."""
    if source.dim() != 3 or not source.numel() or given[0].dim() != 3 or not given[0].size(2):
        return False
    size, directions = given[0].size(2), 2 if stack.bidirectional else 1
    batch = source.size(0 if stack.batch_first else 1)
    rows = size * _GATES.get(mode, 1)
    shapes = []
    for layer in range(stack.layers):
        features = source.size(2) if layer == 0 else size * directions
        one = [(rows, features), (rows, size), *([(rows,), (rows,)] if stack.has_biases else [])]
        shapes += one * directions
    states = (stack.layers * directions, batch, size)
    tensors = (source, *given, *stack.parameters)
    return (
        all(one.shape == states for one in given)
        and [tuple(one.shape) for one in stack.parameters] == shapes
        and (is_cast(source) or len({one.dtype for one in tensors}) == 1)
    )


def _cast(source: Tensor, given: State, stack: _Stack) -> tuple[Tensor, State, _Stack]:
    """Autocast has the layers of cuDNN compute in its dtype, as all but those of 64-bit numbers."""
    dtype = dtype_of_kernel(source)
    hidden, cell = (one.to(dtype) for one in given)
    parameters = [one.to(dtype) for one in stack.parameters]
    return source.to(dtype), (hidden, cell), stack._replace(parameters=parameters)


def _run(mode: int, source: Tensor, given: State, stack: _Stack) -> tuple[Tensor, Tensor, Tensor]:
    directions, each = 2 if stack.bidirectional else 1, 4 if stack.has_biases else 2
    output = source.transpose(0, 1) if stack.batch_first else source
    lasts: list[State] = []
    for layer in range(stack.layers):
        made = []
        for place in range(layer * directions, (layer + 1) * directions):
            weights = stack.parameters[place * each : (place + 1) * each]
            unread = [] if stack.has_biases else [weight.detach() for weight in weights]
            states = (given[0][place], given[1][place])
            reverse = place % directions == 1
            one, *last = _Layer.apply(  # type: ignore[no-untyped-call]
                mode, reverse, stack.has_biases, output, *weights, *unread, *states
            )
            made.append(one)
            lasts.append((last[0], last[1]))
        output = made[0] if directions == 1 else torch.cat(made, -1)
        if stack.dropout and stack.train and layer + 1 < stack.layers:
            output = torch.nn.functional.dropout(output, stack.dropout, True)
    hidden = _stacked([one for one, _ in lasts])
    cell = _stacked([one for _, one in lasts]) if mode == _LSTM else hidden
    return (output.transpose(0, 1) if stack.batch_first else output), hidden, cell


def _stacked(states: list[Tensor]) -> Tensor:
    return states[0].unsqueeze(0) if len(states) == 1 else torch.stack(states)


RECURRENT_FORMS: tuple[Wanted, ...] = tuple(
    (torch._VF, name, partial(_whole, mode)) for name, mode in RECURRENT_MODES.items()
)
