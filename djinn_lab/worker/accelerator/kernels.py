"""Ops that capture records as a CPU runs them, computed by what a GPU has in their place.

A recorded program names the kernels of the machine that recorded it. Most ATen ops have one for every kind of
device; attention and recurrent layers do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from djinn_lab.srg.ops import RECURRENT_MODES, base_name, words
from djinn_lab.worker.accelerator.draws import draw_seed, note_seed, noted_seed, seeded_with

Kernel = Callable[..., Any]
_OWN: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        words(
            """native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
            _native_batch_norm_legit_no_training _batch_norm_with_update _embedding_bag
            _embedding_bag_forward_only"""
        ),
        (1, 2, 3),
    ),
    "_scaled_dot_product_flash_attention_for_cpu": (1,),
    "_scaled_dot_product_efficient_attention": (1, 2, 3),
    "mkldnn_rnn_layer": (3,),
    **dict.fromkeys(words("_fused_rms_norm _weight_norm_interface _ctc_loss"), (1,)),
}


def find_kernel(op: str) -> Kernel | None:
    """Return what computes a recorded op on a GPU, None where it is the op itself."""
    return _KERNELS.get(base_name(op))


def own_results(op: str) -> tuple[int, ...]:
    """Return the places of an op's results that only its own backward reads: a GPU's differ in dtype and size
    from a CPU's, which capture predicted."""
    return _OWN.get(base_name(op), ())


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """With a zero for the logarithms of the sums, which only the backward of a CPU reads."""
    return _attend(query, key, value, dropout_p, is_causal, attn_mask, scale), _unread(query)


def _unread(beside: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8, device=beside.device)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    mask: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        mask = mask.to(query.dtype)
    grouped = query.size(1) != key.size(1)
    found: torch.Tensor = torch.ops.aten.scaled_dot_product_attention.default(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=grouped
    )
    return found


def _attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """The forward pass is computed again, since what it keeps depends on the kernel that torch chooses."""

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Sequence[torch.Tensor]:
        return (_attend(query, key, value, dropout_p, is_causal, attn_mask, scale),)

    return _gradients(forward, (query, key, value), (grad_out,))


def _dropping_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """With the seed that it drew where torch's kernel has it, for the backward pass."""
    seed = draw_seed()
    with seeded_with(seed, query.device):
        made = _attend(query, key, value, dropout_p, is_causal, bias, scale)
    return made, _unread(query), note_seed(seed, query.device), _unread(query)


def _dropping_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    dropout_p: float,
    wanted: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """The forward pass is computed again, and drops what it dropped."""

    def forward(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        query, key, value, *of_bias = given
        with seeded_with(noted_seed(seed), query.device):
            return (_attend(query, key, value, dropout_p, is_causal, of_bias[0] if of_bias else bias, scale),)

    inputs = (query, key, value) if bias is None or not wanted[3] else (query, key, value, bias)
    found = _gradients(forward, inputs, (grad_out,))
    return (*found, None)[:4]


def _recurrent_layer(
    source: torch.Tensor,
    weight: torch.Tensor,
    recurrent_weight: torch.Tensor,
    bias: torch.Tensor,
    recurrent_bias: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """With a byte for the workspace, which only the backward of a CPU reads."""
    weights = (weight, recurrent_weight, bias, recurrent_bias)
    return *_recur(mode, source, weights, hidden, cell, reverse, has_biases), _unread(source)


def _recur(
    mode: int,
    source: torch.Tensor,
    weights: Sequence[torch.Tensor],
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    has_biases: bool,
    train: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer in one direction. ``source``: (time, batch, features). ``train``: it can be run backwards.
    What has no cell returns zeros as its last one."""
    given = source.flip(0) if reverse else source
    shape = (1, source.size(1), weights[1].size(1))
    states = (hidden.reshape(shape), cell.reshape(shape))
    used = list(weights if has_biases else weights[:2])
    options = (has_biases, 1, 0.0, train, False, False)
    if mode == RECURRENT_MODES["lstm"]:
        output, last_hidden, last_cell = torch.lstm(given, states, used, *options)
    else:
        output, last_hidden = _WITHOUT_CELL[mode](given, states[0], used, *options)
        last_cell = torch.zeros_like(cell)
    output = output.flip(0) if reverse else output
    return output, last_hidden.reshape(hidden.shape), last_cell.reshape(cell.shape)


_WITHOUT_CELL: Mapping[int, Kernel] = {
    mode: getattr(torch, name) for name, mode in RECURRENT_MODES.items() if name != "lstm"
}


def _recurrent_layer_backward(
    source: torch.Tensor,
    weight: torch.Tensor,
    recurrent_weight: torch.Tensor,
    bias: torch.Tensor,
    recurrent_bias: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    output: torch.Tensor,
    last_hidden: torch.Tensor,
    last_cell: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_hidden: torch.Tensor | None,
    grad_cell: torch.Tensor | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    """The forward pass is computed again: a GPU has no workspace of it."""

    def forward(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        return _recur(mode, given[0], given[1:5], given[5], given[6], reverse, has_biases, True)

    inputs = (source, weight, recurrent_weight, bias, recurrent_bias, hidden, cell)
    return _gradients(forward, inputs, (grad_output, grad_hidden, grad_cell))


def _gradients(
    forward: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    """Run ``forward`` and return the gradients of its inputs; zeros of one that it does not use."""
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_() for one in inputs]
        made = forward(*leaves)
        given = [(one, grad) for one, grad in zip(made, grads, strict=True) if grad is not None]
        outputs, grad_outputs = [one for one, _ in given], [grad for _, grad in given]
        found = torch.autograd.grad(outputs, leaves, grad_outputs, allow_unused=True)
    return tuple(
        torch.zeros_like(one) if grad is None else grad for one, grad in zip(inputs, found, strict=True)
    )


def _convolution(
    source: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    none = [0] * len(padding)
    return torch.convolution(source, weight, bias, stride, padding, dilation, False, none, groups)


_KERNELS: Mapping[str, Kernel] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention": _dropping_attention,
    "_scaled_dot_product_efficient_attention_backward": _dropping_attention_backward,
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    "mkldnn_convolution": _convolution,
}
