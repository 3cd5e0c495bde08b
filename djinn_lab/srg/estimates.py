"""Arithmetic of the ops that torch's FLOP counter leaves out: elements times a small constant.

These figures are estimates and are reported apart from the counted ones. The constant is the number of basic
floating-point operations a plain implementation spends on an element (a transcendental function counts 4).
An op in no table is *unknown*: it counts 0 and its name is reported.
"""

from __future__ import annotations

from math import log2, prod

from djinn_lab.srg.flops import COUNTED, Formula, OpCall, matmul_flops
from djinn_lab.srg.ops import words


def _table(rows: dict[float, str]) -> dict[str, float]:
    return {name: weight for weight, names in rows.items() for name in names.split()}


_PER_OUTPUT = _table(
    {
        1: """
        abs absolute add _add_relu sub subtract rsub mul multiply div divide true_divide floor_divide neg
        negative sign sgn signbit ceil floor round trunc fix frac fmod remainder relu relu6 threshold
        threshold_backward clamp clamp_min clamp_max clip maximum minimum max min fmax fmin hardtanh
        hardtanh_backward leaky_relu leaky_relu_backward hardshrink hardshrink_backward softshrink
        softshrink_backward bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
        bitwise_right_shift __and __or __xor __lshift __rshift __iand __ior __ixor __ilshift __irshift
        logical_and logical_or logical_xor logical_not eq ne gt ge lt le equal not_equal greater
        greater_equal less less_equal isnan isinf isfinite isneginf isposinf isclose isin heaviside positive
        square where masked_fill masked_scatter copysign nextafter nan_to_num native_dropout_backward
        _masked_scale conj_physical _conj_physical deg2rad rad2deg ldexp frexp gcd lcm cumsum cumprod
        _prelu_kernel prelu rrelu rrelu_with_noise arange range linspace bucketize searchsorted index_add
        scatter_add index_reduce scatter_reduce _amp_foreach_non_finite_check_and_unscale _amp_update_scale
        trapezoid cumulative_trapezoid nll_loss_backward nll_loss2d_backward mse_loss_backward l1_loss ger
        addr outer diff embedding_dense_backward embedding_backward renorm embedding_renorm alpha_dropout
        feature_dropout feature_alpha_dropout
        """,
        2: """
        reciprocal sqrt rsqrt addcmul addcdiv lerp mse_loss smooth_l1_loss smooth_l1_loss_backward
        huber_loss huber_loss_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward
        sigmoid_backward tanh_backward native_dropout dropout _fused_dropout bernoulli uniform rand
        rand_like random randint randint_like _prelu_kernel_backward cummax cummin glu_backward cross
        linalg_cross binomial rrelu_with_noise_backward kl_div angle polar _fused_sgd
        """,
        4: """
        exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh atan2
        arcsin arccos arctan arctan2 arcsinh arccosh arctanh tanh sigmoid erf erfc erfinv pow float_power
        logit logit_backward xlogy sinc hypot logaddexp logaddexp2 elu elu_backward celu selu softplus
        softplus_backward log_sigmoid log_sigmoid_forward log_sigmoid_backward normal normal_functional
        randn randn_like exponential geometric cauchy log_normal logcumsumexp _logcumsumexp i0 multinomial
        poisson randperm binary_cross_entropy binary_cross_entropy_backward
        """,
        6: """
        gelu gelu_backward silu silu_backward mish mish_backward glu digamma lgamma polygamma mvlgamma
        igamma igammac _softmax_backward_data _log_softmax_backward_data masked_softmax_backward
        _fused_adagrad binary_cross_entropy_with_logits upsample_linear1d upsample_bilinear2d
        upsample_trilinear3d upsample_linear1d_backward upsample_bilinear2d_backward
        upsample_trilinear3d_backward _standard_gamma _sample_dirichlet special_entr special_log_ndtr
        special_ndtri special_erfcx special_i0e special_i1 special_i1e special_xlog1py special_zeta
        special_spherical_bessel_j0 special_airy_ai
        """,
        5: "_softmax softmax _safe_softmax _log_softmax log_softmax _masked_softmax",
        8: """
        soft_margin_loss soft_margin_loss_backward multi_margin_loss multilabel_margin_loss_forward
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
        special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        _standard_gamma_grad
        """,
        24: """
        upsample_bicubic2d upsample_bicubic2d_backward _upsample_bicubic2d_aa
        _upsample_bicubic2d_aa_backward
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward grid_sampler_3d_backward
        """,
        14: "_fused_adam _fused_adamw grid_sampler_2d grid_sampler_2d_backward grid_sampler grid_sampler_3d",
    }
)
_PER_INPUT = _table(
    {
        1: """
        sum nansum mean nanmean prod amax amin aminmax _aminmax all any argmax argmin count_nonzero
        max_pool2d max_pool1d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d
        avg_pool2d avg_pool3d max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool3d
        adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
        adaptive_max_pool3d_backward nll_loss nll_loss_forward nll_loss2d_forward trace bincount histc
        nonzero masked_select unique_dim unique_consecutive _unique2 _unique nonzero_static
        value_selecting_reduction_backward fractional_max_pool2d fractional_max_pool3d cummaxmin_backward
        max_pool1d_with_indices segment_reduce _segment_reduce_backward histogram argwhere _embedding_bag
        _embedding_bag_forward_only
        _embedding_bag_backward _embedding_bag_dense_backward embedding_bag median nanmedian mode kthvalue
        """,
        2: """norm linalg_vector_norm linalg_norm linalg__powsum _powsum dist cross_entropy_loss
        cumprod_backward""",
        4: """
        var std var_mean std_mean logsumexp rms_norm _fused_rms_norm _batch_norm_no_update
        _native_batch_norm_legit_no_training _weight_norm_interface _weight_norm _cdist_forward
        _cdist_backward _pdist_backward
        _pdist_forward
        """,
        7: """
        native_layer_norm layer_norm native_batch_norm _native_batch_norm_legit batch_norm native_group_norm
        group_norm instance_norm _native_batch_norm_legit_functional _batch_norm_with_update
        _batch_norm_impl_index _batch_norm_with_update_functional
        """,
        12: """
        native_layer_norm_backward native_batch_norm_backward native_group_norm_backward batch_norm_backward
        _fused_rms_norm_backward _weight_norm_interface_backward _ctc_loss _ctc_loss_backward
        """,
    }
)
_NO_ARITHMETIC = words("""
        _to_copy to _to_cpu clone copy contiguous cat concat concatenate stack _stack hstack vstack dstack
        column_stack row_stack block_diag index index_select index_put _index_put_impl _unsafe_index
        _unsafe_index_put index_copy index_fill gather scatter take take_along_dim put embedding empty
        empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros new_ones new_full
        zeros zeros_like ones ones_like full full_like fill zero scalar_tensor eye tril triu tril_indices
        triu_indices flip fliplr flipud roll rot90 repeat repeat_interleave tile one_hot constant_pad_nd pad
        _pad_circular _pad_enum reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d reflection_pad1d_backward reflection_pad2d_backward
        replication_pad1d_backward replication_pad2d_backward slice_backward select_backward slice_scatter
        select_scatter diagonal_scatter as_strided_scatter diagonal_backward unfold_backward diag diag_embed
        diagflat diagonal im2col col2im channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle
        complex lift lift_fresh lift_fresh_copy resize resize_as upsample_nearest1d upsample_nearest2d
        upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_nearest2d_backward upsample_nearest1d_backward upsample_nearest3d_backward meshgrid
        combinations cartesian_prod fill_diagonal masked_select_backward _efficientzerotensor
        _unsafe_masked_index resolve_conj resolve_neg _shape_as_tensor chunk_cat _chunk_cat
        _pack_padded_sequence _pad_packed_sequence _assert_async _pack_padded_sequence_backward
        gather_backward index_select_backward max_unpool2d max_unpool3d type_as data view view_as
        _unsafe_view reshape reshape_as _reshape_alias _reshape_copy expand expand_as permute transpose t
        unsqueeze squeeze flatten ravel unflatten select slice narrow split split_with_sizes unsafe_split
        unsafe_split_with_sizes chunk unsafe_chunk unbind as_strided detach alias movedim moveaxis swapaxes
        swapdims unfold view_as_real view_as_complex real imag conj _conj _neg_view numpy_T mT mH adjoint
        broadcast_to broadcast_tensors
        """)


def _elements(call: OpCall) -> int:
    return sum(meta.numel for meta in call.outputs) or sum(meta.numel for meta in call.written)


def _largest_input(call: OpCall) -> int:
    return max((meta.numel for meta in call.tensors), default=0)


def _recurrent(call: OpCall) -> int:
    """One layer of ``mkldnn_rnn_layer``: (time, batch, width) input; gates lie in the first weight's rows."""
    source, input_weight, hidden_weight = call.args[0], call.args[1], call.args[2]
    steps: int = prod(source.shape[:2])
    weights: int = prod(input_weight.shape) + prod(hidden_weight.shape)
    return 2 * steps * weights


def _vector_product(call: OpCall) -> int:
    return 2 * max((meta.numel for meta in call.tensors), default=0)


def _sort(call: OpCall) -> int:
    elements = _largest_input(call)
    return int(elements * log2(elements)) if elements > 1 else 0


def _fourier(call: OpCall) -> int:
    elements = max(_largest_input(call), max((meta.numel for meta in call.outputs), default=0))
    return int(5 * elements * log2(elements)) if elements > 1 else 0


def _dense_solve(call: OpCall) -> int:
    """Two thirds of n cubed for each square matrix of the first tensor."""
    shape = tuple(call.tensors[0].shape)
    return 2 * prod(shape) * min(shape[-2:]) // 3 if len(shape) >= 2 else 0


def _linear(call: OpCall) -> int:
    return matmul_flops(call.args[0].shape, (1, call.args[1].shape[0]))


def _matmul(call: OpCall) -> int:
    left, right = call.args[0].shape, call.args[1].shape
    return 2 * prod(left[-1:]) * prod(call.outputs[0].shape) if left and right else 0


_FORMULAS: dict[str, Formula] = {
    "linear": _linear,
    "matmul": _matmul,
    "_int_mm": COUNTED["mm"],
    "_weight_int8pack_mm": _linear,
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), COUNTED["addmm"]),
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": lambda call: 2 * _recurrent(call),
    **dict.fromkeys(words("mv addmv dot vdot"), _vector_product),
    **dict.fromkeys(words("sort argsort msort topk quantile nanquantile"), _sort),
    **dict.fromkeys(words("_fft_r2c _fft_c2r _fft_c2c fft_fft fft_ifft fft_rfft fft_irfft"), _fourier),
    **dict.fromkeys(
        words("""
        linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex _linalg_solve_ex _linalg_det _linalg_slogdet
        linalg_qr _linalg_svd _linalg_eigh linalg_lu linalg_solve_triangular triangular_solve cholesky
        cholesky_solve linalg_matrix_exp linalg_eig _linalg_eigvals geqrf lu_unpack
        """),
        _dense_solve,
    ),
}


def plain_name(name: str) -> str:
    """``_foreach_add_`` -> ``add``: the arithmetic, without the calling convention."""
    stripped = name.removeprefix("_foreach_").rstrip("_")
    return stripped.removesuffix("_copy") if stripped != "_copy" else stripped


def estimate_flops(name: str, call: OpCall) -> int | None:
    """Return the FLOPs of an op that the counter leaves out, or None when it is unknown. ``name`` is a base
    name."""
    plain = name if name in _NO_ARITHMETIC else plain_name(name)
    if plain in _NO_ARITHMETIC:
        return 0
    if (formula := _FORMULAS.get(plain)) is not None:
        return formula(call)
    if (weight := _PER_OUTPUT.get(plain)) is not None:
        return int(weight * _elements(call))
    if (weight := _PER_INPUT.get(plain)) is not None:
        return int(weight * _largest_input(call))
    return None
