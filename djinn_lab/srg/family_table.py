"""Which family an op belongs to, by its base name. What calls alone can distinguish is in
:mod:`djinn_lab.srg.families`."""

from __future__ import annotations


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
        "layer_norm": """
        native_layer_norm layer_norm rms_norm _fused_rms_norm _weight_norm_interface _weight_norm
        """,
        "layer_norm_backward": """
        native_layer_norm_backward _fused_rms_norm_backward _weight_norm_interface_backward
        """,
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
        "copy": """
        clone copy contiguous lift lift_fresh lift_fresh_copy _reshape_copy _unsafe_view alias_copy
        _to_cpu _pack_padded_sequence _pad_packed_sequence _pack_padded_sequence_backward resize
        resize_as
        """,
        "fill": """
        new_zeros new_ones new_full zeros zeros_like ones ones_like full full_like fill zero scalar_tensor eye
        arange range linspace tril_indices triu_indices _shape_as_tensor
        _assert_async fill_diagonal _efficientzerotensor
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
"""Families by base name. Copies, reductions, products and convolutions are distinguished by their call."""
