"""Sort ops into families that cost alike, and say how much work a call is in the unit of its family.

A family is measured on a device at a handful of sizes (:mod:`djinn_lab.srg.curves`), through the same rules:
what a probe's call is charged here is where its seconds lie on the curve. Units are FLOPs, moved bytes or
elements. A *lane* tells calls of equal work apart that run at different rates: the shorter side of a matrix
product, the width of a softmax's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import msgspec

from djinn_lab.srg.estimates import plain_name
from djinn_lab.srg.flops import OpCall
from djinn_lab.srg.ops import words
from djinn_lab.srg.program import TensorMeta, row_major

COMPUTE = words("""
    matmul matmul_short batched attention attention_backward convolution convolution_1x1 depthwise
    convolution_backward convolution_1x1_backward depthwise_backward convolution_transposed recurrent
    recurrent_backward linear_algebra fourier
""")
"""Families whose work is counted in FLOPs."""
STREAMED = COMPUTE | {"update", "fused_optimizer", "gather"}
"""Families whose largest tensor a program meets once in a run: weights."""
UNKNOWN = "unknown"
"""Family of the ops that no table names: priced by their bytes, and reported by name."""
VIEW = "view"


class Charge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``calls``: kernels that one op starts one after the other, each with an equal part of the work.
    ``first``: no earlier node of the program was this op, so its code is in no cache."""

    family: str
    dtype: str
    work: float
    lane: float = 1.0
    calls: int = 1
    first: bool = False


class Sizes(NamedTuple):
    """What an op does besides its call: from the cost book."""

    flops: int
    moved_bytes: int


Rule = Callable[[OpCall, Sizes], tuple[float, float]]
"""Work and lane of a call."""


def charge(name: str, call: OpCall, sizes: Sizes) -> Charge:
    """``name``: base name of an op that computes something."""
    plain = plain_name(name)
    family = _special(name, plain, call) or FAMILY_OF.get(name) or FAMILY_OF.get(plain) or UNKNOWN
    work, lane = RULES.get(family, _bytes)(call, sizes)
    return Charge(family, _dtype(call), max(float(work), 1.0), max(float(lane), 1.0), _calls(name, call))


def _dtype(call: OpCall) -> str:
    """The widest floating-point dtype in the call, else that of its first tensor."""
    metas = (*call.outputs, *call.tensors)
    floats = [meta.dtype for meta in metas if "float" in meta.dtype or "complex" in meta.dtype]
    return max(floats, key=_width, default=metas[0].dtype if metas else "float32")


def _width(dtype: str) -> int:
    return int("".join(filter(str.isdigit, dtype.partition("_")[0])) or 0)


def _calls(name: str, call: OpCall) -> int:
    return max(1, len(call.written or call.outputs)) if name.startswith("_foreach_") else 1


def _special(name: str, plain: str, call: OpCall) -> str | None:
    """Families that depend on more than the name."""
    if plain in _CONVOLUTIONS:
        return _convolution_family(plain, call)
    if plain in _MATMULS:
        rows, inner, columns = _matrix(call)
        return "matmul_short" if inner < min(rows, columns) else "matmul"
    if plain in _REDUCTIONS:
        return _reduction_family(plain, call)
    if (name == "_to_copy" or plain in _COPIES) and call.tensors:
        return _copy_family(call)
    if (
        call.written
        and not name.startswith("_foreach_")
        and FAMILY_OF.get(plain) in ("pointwise", "division")
    ):
        return "update"
    if FAMILY_OF.get(plain) == "concatenation" and any(not _is_dense(meta) for meta in call.tensors):
        return "concatenation_strided"
    return None


def _is_dense(meta: TensorMeta) -> bool:
    return meta.numel == 0 or meta.stride == row_major(meta.shape) or 1 in meta.shape


# -- rules ---------------------------------------------------------------------------------------------------


def _bytes(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    return sizes.moved_bytes, 1


def _elements(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    return _largest(call), 1


def _largest(call: OpCall) -> int:
    return max((meta.numel for meta in (*call.outputs, *call.tensors)), default=0)


def _flops(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    return sizes.flops, 1


def _matrix(call: OpCall) -> tuple[int, int, int]:
    """Rows, inner size and columns of a product of two of the call's tensors, per matrix."""
    tensors = [meta for meta in call.tensors if meta.shape]
    left, right = tensors[-2:] if len(tensors) > 1 else tensors * 2
    result = call.outputs[0].shape if call.outputs else ()
    if len(left.shape) < 2 or len(right.shape) < 2:  # a vector
        return 1, max(left.shape[-1], 1), max(prod(result), 1)
    return left.shape[-2], left.shape[-1], result[-1] if result else 1


def _matmul(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    rows, _, columns = _matrix(call)
    return sizes.flops, min(rows, columns)


def _matmul_short(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    return sizes.flops, _matrix(call)[1]


def _batched(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    return sizes.flops, min(_matrix(call))


def _attention(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    query = call.tensors[0] if len(call.tensors) < 6 else call.tensors[1]
    return sizes.flops, query.shape[2] if len(query.shape) == 4 else 1


def _channels(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    weight = next(
        (meta for meta in call.args[1:3] if isinstance(meta, TensorMeta) and len(meta.shape) > 2), None
    )
    if "backward" in _convolution_kind(call):
        weight = call.args[2]
    return sizes.flops, weight.shape[1] if weight is not None else 1


def _convolution_kind(call: OpCall) -> str:
    return "backward" if len(call.output_slots) == 3 else ""


def _rows(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """Elements; the lane is the length of a row."""
    largest = max((*call.outputs, *call.tensors), key=lambda meta: meta.numel, default=None)
    return (largest.numel, largest.shape[-1]) if largest is not None and largest.shape else (1, 1)


def _indices(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """Rows that are added up, one after the other; the lane is what the result has in bytes."""
    gradient = call.tensors[0]
    rows = gradient.numel / max(gradient.shape[-1] if gradient.shape else 1, 1)
    return rows, sum(meta.nbytes for meta in call.outputs)


def _groups(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """Elements; the lane counts channels."""
    largest = max(call.tensors, key=lambda meta: meta.numel)
    return largest.numel, largest.shape[1] if len(largest.shape) > 1 else 1


def _steps(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """FLOPs; the lane is the number of time steps."""
    return sizes.flops, call.args[0].shape[0]


def _parts(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    return sizes.moved_bytes, len(call.tensors)


RULES: dict[str, Rule] = {
    "matmul": _matmul,
    "matmul_short": _matmul_short,
    "batched": _batched,
    "attention": _attention,
    "attention_backward": _attention,
    **dict.fromkeys(
        words("""
            convolution convolution_1x1 depthwise convolution_backward convolution_1x1_backward
            depthwise_backward convolution_transposed
        """),
        _channels,
    ),
    **dict.fromkeys(
        words("""
            softmax softmax_backward sort topk layer_norm layer_norm_backward
        """),
        _rows,
    ),
    **dict.fromkeys(("batch_norm", "batch_norm_inference", "batch_norm_backward"), _groups),
    **dict.fromkeys(("recurrent", "recurrent_backward"), _steps),
    **dict.fromkeys(("linear_algebra", "fourier"), _flops),
    "embedding_backward": _indices,
    **dict.fromkeys(("concatenation", "concatenation_strided"), _parts),
    **dict.fromkeys(
        words("""
            exponential hyperbolic gelu gelu_backward power trigonometric error_function normal uniform
            bernoulli dropout cumulative index_write scatter group_norm group_norm_backward pooling
            pooling_backward average_pooling average_pooling_backward upsampling upsampling_backward
            loss negative_log_likelihood search permutation fused_optimizer allocation
        """),
        _elements,
    ),
}


UNIT_BYTES = {
    "pointwise": 1,
    **{
        family: 1 if rule is _parts else 1024 if rule is _indices else 8
        for family, rule in RULES.items()
        if family not in COMPUTE
    },
}
"""Bytes that a unit of work stands for, of families that memory bounds; for devices that are not measured."""


# -- by name -------------------------------------------------------------------------------------------------

_CONVOLUTIONS = words("""
    convolution _convolution convolution_overrideable mkldnn_convolution cudnn_convolution
    _slow_conv2d_forward convolution_backward convolution_backward_overrideable
""")
_MATMULS = words("""
    mm addmm linear matmul mv addmv dot vdot _int_mm _weight_int8pack_mm _scaled_mm _addmm_activation
    addr ger outer
""")
_COPIES = words("""
    clone contiguous copy to
""")
_REDUCTIONS = words("""
    sum nansum mean nanmean prod amax amin all any norm linalg_vector_norm linalg_norm var std var_mean
    std_mean logsumexp argmax argmin max min aminmax median
""")
_POOLED_ARGUMENTS = words("""
    argmax argmin max min median
""")


def _convolution_family(plain: str, call: OpCall) -> str:
    backward = "backward" in plain
    weight = call.args[2] if backward else call.args[1]
    transposed = call.argument(7 if backward else 6, "transposed", False)
    groups = call.argument(9 if backward else 8, "groups", 1)
    if plain == "mkldnn_convolution":
        transposed, groups = False, call.argument(6, "groups", 1)
    suffix = "_backward" if backward else ""
    if transposed is True and not backward:
        return "convolution_transposed"
    if isinstance(groups, int) and groups > 1 and weight.shape[1] == 1:
        return f"depthwise{suffix}"
    return f"convolution{suffix}" if prod(weight.shape[2:]) > 1 else f"convolution_1x1{suffix}"


def _reduction_family(plain: str, call: OpCall) -> str:
    source = call.tensors[0] if call.tensors else None
    if source is None or (plain in ("max", "min") and len(call.tensors) > 1):
        return "pointwise"
    dims = call.argument(1, "dim")
    dims = dims if isinstance(dims, list) else [dims] if type(dims) is int else []
    rank = len(source.shape)
    inner = not dims or any(dim % max(rank, 1) == rank - 1 for dim in dims if isinstance(dim, int))
    kind = "variance" if plain.startswith(("var", "std")) else "reduction"
    kind = "mean" if plain in ("mean", "nanmean") else kind
    kind = "selection" if plain in _POOLED_ARGUMENTS and dims else kind
    return kind if inner else f"{kind}_outer"


def _copy_family(call: OpCall) -> str:
    source = call.tensors[-1] if call.written else call.tensors[0]
    target = call.written[0] if call.written else call.outputs[0] if call.outputs else source
    if source.dtype != target.dtype:
        return "conversion"
    same = source.stride == target.stride or source.numel != target.numel or source.span_bytes < source.nbytes
    return "copy" if same else "transposition"


def _table(rows: dict[str, str]) -> dict[str, str]:
    return {name: family for family, names in rows.items() for name in names.split()}


FAMILY_OF = _table(
    {
        "batched": "bmm baddbmm addbmm",
        "attention": """
        _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu
        """,
        "attention_backward": """
        _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
        """,
        "recurrent": "mkldnn_rnn_layer",
        "recurrent_backward": "mkldnn_rnn_layer_backward",
        "pointwise": """
        abs absolute add _add_relu sub subtract rsub mul multiply neg negative sign sgn ceil floor round
        trunc fix relu relu6 threshold threshold_backward clamp clamp_min clamp_max clip maximum minimum fmax
        fmin hardtanh hardtanh_backward leaky_relu leaky_relu_backward hardshrink hardshrink_backward
        softshrink softshrink_backward positive square copysign nextafter nan_to_num native_dropout_backward
        _masked_scale conj_physical _conj_physical deg2rad rad2deg addcmul lerp smooth_l1_loss_backward
        huber_loss_backward mse_loss_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward
        sigmoid_backward tanh_backward glu_backward _prelu_kernel prelu _prelu_kernel_backward trapezoid
        cumulative_trapezoid diff cross linalg_cross ldexp _amp_foreach_non_finite_check_and_unscale
        _amp_update_scale _softmax_grad bitwise_left_shift bitwise_right_shift __lshift __rshift __ilshift
        __irshift
        """,
        "comparison": """
        eq ne gt ge lt le equal not_equal greater greater_equal less less_equal isnan isinf isfinite isneginf
        isposinf isclose heaviside signbit logical_and logical_or logical_xor logical_not bitwise_and
        bitwise_or bitwise_xor bitwise_not __and __or __xor __iand __ior __ixor
        """,
        "choice": "where masked_fill",
        "loss": "mse_loss smooth_l1_loss huber_loss l1_loss kl_div",
        "division": """
        div divide true_divide floor_divide frac fmod remainder reciprocal sqrt rsqrt addcdiv gcd lcm hypot
        """,
        "exponential": """
        exp exp2 expm1 log log2 log10 log1p sigmoid silu softplus softplus_backward log_sigmoid
        log_sigmoid_forward log_sigmoid_backward elu elu_backward celu selu logit logit_backward xlogy
        logaddexp logaddexp2 binary_cross_entropy binary_cross_entropy_backward silu_backward
        binary_cross_entropy_with_logits sinc frexp soft_margin_loss soft_margin_loss_backward glu
        """,
        "hyperbolic": """
        tanh sinh cosh asinh acosh atanh arcsinh arccosh arctanh mish mish_backward tan asin acos atan atan2
        arcsin arccos arctan arctan2 angle polar
        """,
        "power": "pow float_power",
        "trigonometric": "sin cos",
        "error_function": """
        erf erfc erfinv digamma lgamma polygamma mvlgamma igamma igammac i0 special_entr special_log_ndtr
        special_ndtri special_erfcx special_i0e special_i1 special_i1e special_xlog1py special_zeta
        special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        special_spherical_bessel_j0 special_airy_ai _standard_gamma_grad
        """,
        "gelu": "gelu",
        "gelu_backward": "gelu_backward",
        "dropout": "native_dropout dropout _fused_dropout",
        "bernoulli": "bernoulli rrelu_with_noise rrelu",
        "uniform": "uniform rand rand_like random randint randint_like exponential geometric cauchy",
        "normal": "normal normal_functional randn randn_like log_normal _standard_gamma poisson",
        "permutation": "_sample_dirichlet randperm multinomial binomial",
        "softmax": "_softmax softmax _safe_softmax _log_softmax log_softmax _masked_softmax",
        "softmax_backward": "_softmax_backward_data _log_softmax_backward_data masked_softmax_backward",
        "layer_norm": "native_layer_norm layer_norm rms_norm _fused_rms_norm",
        "layer_norm_backward": "native_layer_norm_backward _fused_rms_norm_backward",
        "group_norm": "native_group_norm group_norm instance_norm",
        "group_norm_backward": "native_group_norm_backward",
        "batch_norm": """
        native_batch_norm _native_batch_norm_legit batch_norm _native_batch_norm_legit_functional
        _batch_norm_with_update _batch_norm_impl_index _batch_norm_with_update_functional
        """,
        "batch_norm_inference": "_native_batch_norm_legit_no_training _batch_norm_no_update",
        "batch_norm_backward": "native_batch_norm_backward batch_norm_backward",
        "gather": """
        embedding index_select index gather take take_along_dim _unsafe_index masked_select nonzero
        _unsafe_masked_index argwhere _embedding_bag _embedding_bag_forward_only embedding_bag
        """,
        "embedding_backward": """
        embedding_dense_backward embedding_backward _embedding_bag_backward _embedding_bag_dense_backward
        """,
        "index_write": """
        index_put _index_put_impl _unsafe_index_put index_add index_copy index_fill put masked_scatter
        index_reduce embedding_renorm renorm
        """,
        "scatter": "scatter scatter_add scatter_reduce gather_backward value_selecting_reduction_backward",
        "copy": "clone copy contiguous lift lift_fresh lift_fresh_copy _reshape_copy resize resize_as",
        "fill": """
        new_zeros new_ones new_full zeros zeros_like ones ones_like full full_like fill zero scalar_tensor eye
        arange range linspace tril_indices triu_indices fill_diagonal _efficientzerotensor
        """,
        "allocation": "empty empty_like empty_strided empty_permuted new_empty new_empty_strided",
        "concatenation": """
        cat concat concatenate stack _stack hstack vstack dstack column_stack row_stack block_diag
        chunk_cat _chunk_cat
        """,
        "padding": """
        constant_pad_nd pad _pad_circular _pad_enum reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d reflection_pad1d_backward
        reflection_pad2d_backward replication_pad1d_backward replication_pad2d_backward slice_backward
        select_backward slice_scatter select_scatter diagonal_scatter as_strided_scatter diagonal_backward
        unfold_backward tril triu
        """,
        "transposition": """
        flip fliplr flipud roll rot90 repeat repeat_interleave tile diag diag_embed diagflat im2col col2im
        channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle one_hot complex
        """,
        "cumulative": "cumsum cumprod cummax cummin logcumsumexp _logcumsumexp _cummax_helper _cummin_helper",
        "sort": "sort argsort msort unique_dim unique_consecutive _unique2 _unique quantile nanquantile mode",
        "topk": "topk kthvalue",
        "search": "searchsorted bucketize isin bincount histc histogram",
        "pooling": """
        max_pool2d max_pool1d max_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d
        adaptive_max_pool3d max_pool1d_with_indices fractional_max_pool2d fractional_max_pool3d max_unpool2d
        max_unpool3d
        """,
        "pooling_backward": """
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward
        """,
        "average_pooling": """
        avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d
        """,
        "average_pooling_backward": """
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        """,
        "upsampling": """
        upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_bicubic2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa grid_sampler_2d grid_sampler
        grid_sampler_3d
        """,
        "upsampling_backward": """
        upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward
        upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        grid_sampler_2d_backward grid_sampler_3d_backward
        """,
        "negative_log_likelihood": """
        nll_loss nll_loss_forward nll_loss2d_forward cross_entropy_loss
        multi_margin_loss multilabel_margin_loss_forward
        """,
        "negative_log_likelihood_backward": "nll_loss_backward nll_loss2d_backward",
        "fused_optimizer": "_fused_adam _fused_adamw _fused_sgd _fused_adagrad",
        "linear_algebra": """
        linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex _linalg_solve_ex _linalg_det _linalg_slogdet
        linalg_qr _linalg_svd _linalg_eigh linalg_lu linalg_solve_triangular triangular_solve cholesky
        cholesky_solve linalg_matrix_exp linalg_eig _linalg_eigvals geqrf lu_unpack
        """,
        "fourier": "_fft_r2c _fft_c2r _fft_c2c fft_fft fft_ifft fft_rfft fft_irfft",
    }
)
"""Families by base name. Copies, reductions, products and convolutions are told apart by their call."""
