"""CUDA's rules of autocast for the recorder in Python; the native recorder has torch's own lists compiled
(``native/autocast.h``), for the same dispatch key.

Source of the lists: ``ATen/autocast_mode.h`` of torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.torch_functions.pool_devices import CUDA_RULES
from djinn_lab.capture.torch_functions.replaced import Wanted

_KEY: Any = torch._C.DispatchKey.AutocastIPU  # type: ignore[attr-defined]
_LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv "
    "linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell "
    "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention "
    "scaled_dot_product_attention"
)
_FLOAT = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm "
    "frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss "
    "cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss "
    "mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss "
    "multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
    "_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
_FLOAT_UNLESS_ASKED = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_FLOAT_OUT = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
"""Op names with their overload, as policies of autocast have them."""
_UNSAFE = "binary_cross_entropy"


@cache
def have_rules() -> None:
    """Register the rules, once a process, unless the native recorder has."""
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::exp", "AutocastIPU"):
        return
    fallback = torch.library.Library("_", "IMPL", "AutocastIPU")
    fallback.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", "AutocastIPU")
    _LIBRARIES.extend((fallback, library))
    for names, rule in (
        (_LOWER, _lower),
        (_FLOAT, _float),
        (_FLOAT_UNLESS_ASKED, _unless_asked),
        (_WIDEST, _widest),
    ):
        for name in names.split():
            library.impl(name, _kernel(rule, _op(name)))
    for name, overload in _FLOAT_OUT.items():
        library.impl(name, _kernel(_float_out, getattr(torch.ops.aten.norm, overload)))
    library.impl(_UNSAFE, _refuse)


_LIBRARIES: list[torch.library.Library] = []
"""Kept: a library takes its kernels along."""


@contextmanager
def cuda_rules() -> Iterator[None]:
    """Let the rules count inside, in this thread, while autocast is on."""
    have_rules()
    before = torch._C._dispatch_tls_is_dispatch_key_included(_KEY)
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, before)


def _op(name: str) -> OpOverload:
    base, _, overload = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, base), overload or "default")
    return found


def _kernel(rule: Callable[..., Any], op: OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return rule(op, args, kwargs)

    return kernel


def _is_eligible(item: object) -> bool:
    return (
        isinstance(item, torch.Tensor)
        and item.device.type == "cpu"
        and item.is_floating_point()
        and item.dtype != torch.float64
    )


def _cast(item: Any, dtype: torch.dtype) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_cast(part, dtype) for part in item)
    return _cast_tensor(item, dtype) if _is_eligible(item) and item.dtype != dtype else item


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights are cast once, as torch's own rules do: their gradients add up in half precision."""
    is_weight = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf
    if dtype != _low() or not is_weight or tensor._is_view() or not torch.is_autocast_cache_enabled():
        return tensor.to(dtype)
    if id(tensor) not in _casts:
        _casts[id(tensor)] = (tensor, tensor.to(dtype))
    return _casts[id(tensor)][1]


_casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""Weights, which are kept so that no other has their number, and what they were cast to."""


def _forgetting(original: Callable[[], None]) -> Callable[[], None]:
    def clear() -> None:
        _casts.clear()
        original()

    return clear


FORGETTING: Wanted = (torch, "clear_autocast_cache", _forgetting)
"""Torch calls it where the outermost autocast ends."""


def _called(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    return op(*_cast(args, dtype), **{name: _cast(item, dtype) for name, item in kwargs.items()})


def _lower(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _called(op, args, kwargs, _low())


def _float(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _called(op, args, kwargs, torch.float32)


def _unless_asked(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result is float32 unless a dtype was asked for."""
    if not _is_eligible(args[0]):
        return op(*args, **kwargs)
    place = [argument.name for argument in op._schema.arguments].index("dtype")
    if len(args) > place:
        dtype = torch.float32 if args[place] is None else args[place]
        return op(*args[:place], dtype, *args[place + 1 :], **kwargs)
    return op(*args, **{**kwargs, "dtype": kwargs.get("dtype") or torch.float32})


def _float_out(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return op(*args, **kwargs, dtype=torch.float32 if _is_eligible(args[0]) else args[0].dtype)


def _widest(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = {item.dtype for item in _tensors((*args, *kwargs.values())) if _is_eligible(item)}
    return _called(op, args, kwargs, _low() if found <= {_low()} else torch.float32)


def _tensors(items: Any) -> list[Any]:
    flat: list[Any] = []
    for item in items:
        flat += _tensors(item) if isinstance(item, (list, tuple)) else [item]
    return flat


def _low() -> torch.dtype:
    return torch.get_autocast_dtype(CUDA_RULES)


def _refuse(*args: object, **kwargs: object) -> None:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
        "binary_cross_entropy_with_logits or BCEWithLogits, which are safe to autocast."
    )
