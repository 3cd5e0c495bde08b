"""Which op needs what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from djinn_lab.numerics import deterministic, set_deterministic
from djinn_lab.srg.ops import base_name, parameters, words
from djinn_lab.worker.guards import layouts, losses, norms, pooling, recurrent, results, single_ops
from djinn_lab.worker.guards.checks import CallArguments, Check
from djinn_lab.worker.guards.layouts import side_by_side
from djinn_lab.worker.guards.results import After

_CHECKS: Mapping[str, Check] = {
    "_adaptive_avg_pool2d_backward": pooling.averaged(2),
    "_adaptive_avg_pool3d_backward": pooling.averaged(3),
    "adaptive_max_pool2d_backward": pooling.pooled(2),
    "adaptive_max_pool3d_backward": pooling.pooled(3),
    "fractional_max_pool2d_backward": pooling.pooled(2),
    "fractional_max_pool3d_backward": pooling.pooled(3),
    "max_pool2d_with_indices_backward": pooling.pooled(2),
    "max_pool3d_with_indices_backward": pooling.pooled(3),
    "reflection_pad1d_backward": pooling.padded(1, reflects=True),
    "reflection_pad2d_backward": pooling.padded(2, reflects=True),
    "reflection_pad3d_backward": pooling.padded(3, reflects=True),
    "replication_pad1d_backward": pooling.padded(1, reflects=False),
    "replication_pad2d_backward": pooling.padded(2, reflects=False),
    "replication_pad3d_backward": pooling.padded(3, reflects=False),
    "grid_sampler_2d_backward": pooling.grid_sampled(2),
    "grid_sampler_3d_backward": pooling.grid_sampled(3),
    "native_batch_norm": norms.batch_norm,
    "_native_batch_norm_legit": norms.batch_norm,
    "_native_batch_norm_legit_no_training": norms.batch_norm,
    "_batch_norm_with_update": norms.batch_norm,
    "native_batch_norm_backward": norms.batch_norm_backward,
    "batch_norm_backward": norms.batch_norm_backward,
    "native_group_norm": norms.group_norm,
    "native_group_norm_backward": norms.group_norm,
    "native_layer_norm_backward": norms.layer_norm_backward,
    "_weight_norm_interface": norms.weight_norm,
    "_weight_norm_interface_backward": norms.weight_norm,
    "nll_loss_backward": losses.nll_backward,
    "nll_loss2d_backward": losses.nll2d_backward,
    "multi_margin_loss_backward": losses.multi_margin_backward,
    "binary_cross_entropy": losses.same_shape,
    "binary_cross_entropy_backward": losses.same_shape_backward,
    "_ctc_loss": losses.ctc,
    "ctc_loss": losses.ctc,
    "_ctc_loss_backward": losses.ctc,
    "_log_softmax_backward_data": single_ops.softmax_backward,
    "_softmax_backward_data": single_ops.softmax_backward,
    "_fft_c2c": single_ops.fft,
    "_fft_c2r": single_ops.fft,
    "_fft_r2c": single_ops.fft,
    "_dirichlet_grad": single_ops.dirichlet_grad,
    "_sobol_engine_initialize_state_": single_ops.sobol_state,
    "_cdist_backward": single_ops.cdist_backward,
    "_pdist_backward": single_ops.pdist_backward,
    "_embedding_bag": single_ops.embedding_bag,
    "embedding_bag": single_ops.embedding_bag,
    "_embedding_bag_forward_only": single_ops.embedding_bag,
    "_embedding_bag_backward": single_ops.embedding_bag_backward,
    "_embedding_bag_dense_backward": single_ops.embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward": single_ops.embedding_bag_backward,
    "_scaled_dot_product_flash_attention_for_cpu": single_ops.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": single_ops.attention,
    "segment_reduce": single_ops.segments,
    "_segment_reduce_backward": single_ops.segments,
    "lu_unpack": single_ops.pivots,
    "linalg_lu_solve": single_ops.pivots,
    "lcm": single_ops.lcm,
    "lcm_": single_ops.lcm,
    "gcd": single_ops.lcm,
    "gcd_": single_ops.lcm,
    "mkldnn_rnn_layer": recurrent.layer,
    "mkldnn_rnn_layer_backward": recurrent.layer_backward,
    "rrelu_with_noise": single_ops.noise,
    "rrelu_with_noise_": single_ops.noise,
    "rrelu_with_noise_functional": single_ops.noise,
}
_OUT_CHECKS: Mapping[str, Check] = {
    "avg_pool3d": layouts.outs_side_by_side,
    "narrow_copy": layouts.outs_side_by_side,
    **dict.fromkeys(words("linalg_lu lu_unpack tril triu"), layouts.outs_of_matrices),
}
"""Kernels that write to the tensors given as ``out=`` as if these lay as their own do."""
_BAGS = ("indices", "offsets", "per_sample_weights")
_CONTIGUOUS: Mapping[str, tuple[str, ...]] = {
    "adaptive_max_pool3d_backward": ("indices",),
    "fractional_max_pool2d_backward": ("indices",),
    "fractional_max_pool3d_backward": ("indices",),
    "native_group_norm": ("weight", "bias"),
    "native_group_norm_backward": ("grad_out", "input", "mean", "rstd", "weight"),
    "native_layer_norm_backward": ("mean", "rstd"),
    "_weight_norm_interface": ("v", "g"),
    "_weight_norm_interface_backward": ("grad_w", "saved_v", "saved_g", "saved_norms"),
    "_embedding_bag": _BAGS,
    "_embedding_bag_forward_only": _BAGS,
    "_embedding_bag_backward": ("bag_size",),
    "_embedding_bag_dense_backward": ("bag_size",),
    "_scaled_dot_product_flash_attention_for_cpu": ("query", "key", "value"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("query", "key", "value", "out"),
    "mkldnn_rnn_layer": ("input", "hx_", "cx_"),
    "mkldnn_rnn_layer_backward": (
        *("input", "hx_", "cx_tmp", "output", "hy_", "cy_"),
        *("grad_output", "grad_hy", "grad_cy"),
    ),
}
"""Arguments that kernels read as elements side by side, whatever their strides: each is given so."""
_IN_ORDER_OF = {"native_group_norm_backward": "input"}
"""The argument whose memory format the others have to share, where the kernel takes more than one."""
_UNFILLED = words("_ctc_loss embedding_bag _embedding_bag _embedding_bag_forward_only mkldnn_rnn_layer")
"""They leave parts of what they return as the memory was. Torch fills new memory while they run."""
_POLYNOMIALS = words(
    """chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p"""
)
_AFTER: Mapping[str, After] = {
    **dict.fromkeys(words("mse_loss smooth_l1_loss linalg_matrix_rank col2im im2col"), results.zero_tail),
    **{f"special_{name}": results.polynomial for name in _POLYNOMIALS},
}


@dataclass(frozen=True, slots=True)
class Guard:
    """``checks``: raise for a call that the kernel must not see. ``contiguous``: arguments that it gets as
    elements side by side, in the order of those of ``order`` where that is named. ``fills``: new memory is
    filled during the call. ``after``: clears what the kernel leaves in its result as it was."""

    op: str
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    checks: tuple[Check, ...]
    contiguous: tuple[str, ...]
    order: str | None
    fills: bool
    after: After | None

    def __call__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func`` if it may be given these arguments. Raises Refused."""
        by_place = dict(zip(self.names, args, strict=False))
        given = CallArguments(self.op, {**self.defaults, **by_place, **kwargs})
        for check in self.checks:
            check(given)
        if self.contiguous:
            args, kwargs = self._side_by_side(given, args, kwargs)
        if self.fills:
            with _new_memory_filled():
                returned = func(*args, **kwargs)
        else:
            returned = func(*args, **kwargs)
        if self.after is not None:
            self.after(given, returned)
        return returned

    def _side_by_side(
        self, given: CallArguments, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        like = None if self.order is None else getattr(given, self.order)

        def laid(name: str, item: Any) -> Any:
            return side_by_side(item, like) if name in self.contiguous else item

        placed = [laid(name, item) for name, item in zip(self.names, args, strict=False)]
        return placed, {name: laid(name, item) for name, item in kwargs.items()}


def find_guard(op: str, schema: Any) -> Guard | None:
    """None for an op that may be called with whatever the pool accepts. Arguments have the names of the table
    of ops, since torch's own differ between its versions."""
    name = base_name(op)
    check, fills, after = _CHECKS.get(name), name in _UNFILLED, _AFTER.get(name)
    on_outs = _OUT_CHECKS.get(name) if any(one.is_out for one in schema.arguments) else None
    checks = tuple(one for one in (check, on_outs) if one is not None)
    if not checks and not fills and after is None:
        return None
    names = tuple(one.name for one in parameters(op))
    given = zip(names, schema.arguments, strict=False)
    defaults = {known: one.default_value for known, one in given if one.has_default_value()}
    return Guard(op, names, defaults, checks, _CONTIGUOUS.get(name, ()), _IN_ORDER_OF.get(name), fills, after)


@contextmanager
def _new_memory_filled() -> Iterator[None]:
    before = deterministic()
    set_deterministic(on=True, warn_only=True, fill=True)
    try:
        yield
    finally:
        set_deterministic(*before)
