"""Ops whose CPU kernel lays its results out otherwise than torch's shape rules say, found by comparing all of
torch's operator database (``make sweep-ops``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.capture.values import Layout, LazyValue

_DEVICE_DEPENDENT = (
    *("convolution", "mkldnn", "rnn", "lstm", "gru", "cudnn", "fused_sdp_choice"),
    *("_fft_", "linalg_", "pixel_shuffle", "median", "mode", "histc"),
)
"""Ops whose result layout is the CPU kernel's own choice."""
_NEEDS_ELEMENTS = frozenset(
    (
        *("scaled_dot_product_attention", "_scaled_dot_product_attention_math"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_native_multi_head_attention",
        *("native_batch_norm_backward", "batch_norm_backward", "_weight_norm", "_weight_norm_interface"),
        *("_masked_softmax", "_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_scramble_"),
        "_sobol_engine_initialize_state_",
    )
)
"""Ops whose CPU kernel divides by sizes, or reads what must be there: for no elements it ends the process."""
_SHAPED_BY_KERNEL = (
    *("native_batch_norm", "_batch_norm_with_update", "native_layer_norm.", "_embedding_bag"),
    *("mkldnn_rnn_layer.default", "nonzero_static", "max_unpool", "linalg_eig."),
)
"""Ops whose CPU kernel returns other layouts than torch's shape rule says: asked once per key, on zeros."""
_STRIDED_BY_KERNEL = (
    *("logical_", "logaddexp", "ldexp", "copysign", "heaviside", "angle", "div.Tensor_mode", "pow."),
    *("native_dropout_backward", "nll_loss2d", "_fft_", "softmax_backward", "elu_backward", "isin."),
    *("hardsigmoid_backward", "hardswish_backward", "hardtanh_backward", "logit_backward", "log_sigmoid"),
    *("softplus_backward", "_loss_backward", "cross_entropy_backward", "floor_divide.", "float_power"),
    *("xlog1py", "xlogy", "_weight_norm_interface", "masked_select_backward", "channel_shuffle", "normal."),
)
"""Such as do so when an input is not row-major."""
_OF_ACCELERATORS = ("mkldnn_rnn_layer",)
"""Ops that are recorded in dtypes and modes for which a CPU has no kernel, for devices that have."""
_TRIAL_BYTES_MAX = 2**20
_DYNAMIC = torch.Tag.dynamic_output_shape


@cache
def is_device_dependent(signature: Signature) -> bool:
    return any(part in signature.name for part in _DEVICE_DEPENDENT)


def kernel_decides(signature: Signature, values: Sequence[LazyValue]) -> bool:
    """Return whether the kernel must be asked, on zeros. Rules also forget empty tensors, ``out=`` ones among
    them, which cost little to try."""
    layouts = [value.layout for value in values]
    return (
        _has_part(signature, _SHAPED_BY_KERNEL)
        or (not all(layout.numel for layout in layouts) and _may_try(signature, layouts))
        or (_has_part(signature, _STRIDED_BY_KERNEL) and not all(map(_is_row_major, layouts)))
    )


@cache
def _has_part(signature: Signature, parts: tuple[str, ...]) -> bool:
    return any(part in signature.name for part in parts)


def needs_elements(signature: Signature) -> bool:
    """Return whether the op's CPU kernel must not be called for tensors without elements."""
    return signature.name.split(".")[1] in _NEEDS_ELEMENTS


def calls_a_library(signature: Signature) -> bool:
    """Return whether the op's CPU kernel may be a library's, never called in the notebook's process."""
    return is_device_dependent(signature) or needs_elements(signature)


@cache
def may_lack_a_kernel(signature: Signature) -> bool:
    """Return whether a refusal of the CPU's kernel says nothing of an accelerator's."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return _has_part(signature, _OF_ACCELERATORS) or not has_kernel(signature.func.name(), "CPU")


def refuses_only_shapes(signature: Signature) -> bool:
    """Return whether the op's CPU kernel refuses shapes that torch's rule accepts, and no values."""
    return signature.name.startswith("aten.normal.")


def _may_try(signature: Signature, layouts: Sequence[Layout]) -> bool:
    """Return whether a trial is cheap, and the shapes do not depend on the data."""
    packet = signature.func._overloadpacket
    dynamic = any(_DYNAMIC in getattr(packet, overload).tags for overload in packet.overloads())
    small = sum(layout.span_bytes for layout in layouts) <= _TRIAL_BYTES_MAX
    return small and not dynamic and not signature.is_view


def _is_row_major(layout: Layout) -> bool:
    return torch.empty_strided(layout.shape, layout.stride, device="meta").is_contiguous()
