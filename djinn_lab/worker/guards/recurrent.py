"""One layer of an LSTM as oneDNN computes it, which takes all sizes from its caller."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from djinn_lab.srg.ops import RECURRENT_MODES
from djinn_lab.worker.guards.checks import CallArguments

_LSTM, _GATES = RECURRENT_MODES["lstm"], 4


class _Sizes(NamedTuple):
    steps: int
    batch: int
    features: int
    hidden: int
    has_biases: bool
    reverse: bool
    train: bool
    dtype: torch.dtype


def layer(given: CallArguments) -> None:
    sizes = _sizes(given)
    _expect_weights(given, sizes, ("weight0", "weight1", "weight2", "weight3"))
    given.expect_elements(sizes.batch * sizes.hidden, "hx_", "cx_")
    given.expect_alike("input", "hx_", "cx_")


def layer_backward(given: CallArguments) -> None:
    sizes = _sizes(given)
    _expect_weights(given, sizes, ("weight1", "weight2", "weight3", "weight4"))
    given.expect_elements(sizes.batch * sizes.hidden, "hx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy")
    for name in ("output", "grad_output"):
        if getattr(given, name) is not None:
            given.expect_shape(name, (sizes.steps, sizes.batch, sizes.hidden))
    given.expect_alike("input", "hx_", "cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy", "output", "grad_output")
    workspace = given.workspace
    given.expect(workspace.dtype is torch.uint8 and workspace.is_contiguous(), "workspace is no plain bytes")
    given.expect_sizes(_workspace_bytes(sizes), "workspace")


def _sizes(given: CallArguments) -> _Sizes:
    source, hidden = given.input, given.hidden_size
    given.expect(given.mode == _LSTM and given.num_layers > 0, "it is no LSTM, the one that CPUs have whole")
    given.expect(not given.batch_sizes, "batch_sizes are not supported")
    given.expect(source.dim() == 3 and source.numel() > 0, "input is empty, or has not three dimensions")
    given.expect(hidden > 0, f"hidden_size is {hidden}")
    steps, batch, features = source.shape
    return _Sizes(steps, batch, features, hidden, given.has_biases, given.reverse, given.train, source.dtype)


def _expect_weights(given: CallArguments, sizes: _Sizes, names: tuple[str, str, str, str]) -> None:
    rows = _GATES * sizes.hidden
    given.expect_shape(names[0], (rows, sizes.features))
    given.expect_shape(names[1], (rows, sizes.hidden))
    if sizes.has_biases:
        given.expect_elements(rows, *names[2:])
    given.expect_alike("input", *names)


@lru_cache(1024)
def _workspace_bytes(sizes: _Sizes) -> int:
    """What oneDNN makes for these sizes in the forward pass, and reads in the backward one."""
    rows = _GATES * sizes.hidden
    shapes = (
        (rows, sizes.features),
        (rows, sizes.hidden),
        (rows,),
        (rows,),
        *((sizes.batch, sizes.hidden),) * 2,
    )
    source = torch.zeros(sizes.steps, sizes.batch, sizes.features, dtype=sizes.dtype)
    tensors = [torch.zeros(shape, dtype=sizes.dtype) for shape in shapes]
    options: tuple[object, ...] = (
        sizes.reverse,
        [],
        _LSTM,
        sizes.hidden,
        1,
        sizes.has_biases,
        False,
        False,
        sizes.train,
    )
    with torch.enable_grad():  # it makes none without
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer.default(source, *tensors, *options)
    return int(workspace.numel())
