"""Which ATen overloads a graph may name, derived from torch's own registry by the rule below.

An overload is allowed when

* it is in the namespace ``aten`` and known to torch's dispatcher (not only to the TorchScript interpreter);
* every argument and return is a tensor, a number, a bool, a string, a device, a list of those or an optional
  of those (dtype, layout and memory format are integers in a schema). A ``Generator`` may occur only as an
  optional argument, which templates leave out;
* it returns at least one tensor, or it returns nothing and is one of the in-place list ops;
* its name is not on the deny lists: ops that touch files, streams, pinned memory or autograd's state, that
  need sparse, nested, quantized or opaque layouts, or that exist for one vendor's library only. Native ops
  that eager torch dispatches to on a CPU stay allowed. So are ops that no captured program names and whose
  kernels trust their caller to the point of reaching beyond their tensors.

``python -m djinn_lab.capture.allow_list`` prints the table that is stored as ``djinn_lab/srg/operators.txt``,
so that the pool can check graphs without torch; a test compares. :mod:`djinn_lab.srg.ops` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from djinn_lab.capture.shapes.signature import draws

_PLAIN = r"Tensor|number|int|float|bool|str|complex|Device"
_TYPE = re.compile(
    rf"(?:{_PLAIN})|Optional\[(?:{_PLAIN}|Generator|List\[(?:{_PLAIN}|Optional\[Tensor\])\])\]"
    rf"|List\[(?:{_PLAIN}|Optional\[Tensor\])\]"
)
_TENSOR_RETURN = re.compile(r"Tensor|List\[Tensor\]")

_DENIED_NAMES = re.compile(
    r"from_file|set_|set|_set_.*|set_data|record_stream|_?pin_memory|_copy_from.*|_lazy_clone"
    r"|rename_?|refine_names|align_.*|_make_dual.*|_unpack_dual|_fw_primal.*|_fw_dual.*|requires_grad_|retain_grad"
    r"|_foobar|_test_.*|_propagate_xla_data|_print|_dimI|_dimV|is_.*|_is_.*"
    r"|_add_batch_dim|_remove_batch_dim|_make_dep_token"
)
_DENIED_LAYOUTS = re.compile(
    r"_?sparse_.*|.*_sparse_.*|_?(to_)?sparse.*|to_dense.*|_to_dense|sspaddmm|hspmm|smm|_?coalesce.*"
    r"|_?indices(_copy)?|_?values(_copy)?"
    r"|c?crow_indices.*|c?col_indices.*|row_indices.*|ccol_indices.*|_convert_indices_from.*|_validate_.*|_spdiags"
    r"|resize_as_sparse.*|copy_sparse_to_sparse.*|_csr.*|_compute_.*sparse.*|_resize_as_sparse.*|_spsolve"
    r"|_?nested_.*|.*_nested_.*|.*_jagged.*|.*jagged_.*|to_padded_tensor|_reshape_copy_nested"
    r"|(?!fake_|_fake_)(.*_)?quanti[zs].*|q_.*|int_repr|dequantize.*|fbgemm_.*|_?choose_qparams.*|_make_per_.*"
    r"|_empty_(affine|per_channel)_.*|_dyn_quant.*|_wrapped_.*|_convert_weight_.*"
    r"|.*_mkldnn.*|(?!mkldnn_(convolution|rnn_layer))_?mkldnn_.*"
)
_DENIED_BACKENDS = re.compile(
    r"_?(cudnn|miopen|cuda|cufft|mps|xpu|vulkan|metal|triton|cslt|nnpack|xnnpack|neuron)_.*|_thnn_fused_.*"
    r"|_flash_attention_.*|_efficient_attention_.*|_fill_mem_eff_.*|_scaled_dot_product_(cudnn|fused)_.*"
    r"|_scaled_dot_product_flash_attention(?!_for_cpu).*|_scaled_grouped_mm.*|_(use|has)_.*|.*_mps(_.*)?"
)
_DENIED_KERNELS = re.compile(
    r"_batch_norm_impl_index_backward|_batch_norm_no_update|_cholesky_solve_helper|_compute_linear_combination"
    r"|_foreach_copy|_logcumsumexp|_new_zeros_with_same_feature_meta|_pad_circular|_reshape_alias_copy|_stack"
    r"|_slow_conv2d_backward|_thnn_differentiable_.*|_transform_bias_rescale_qkv|resize"
)
"""Kernels that check nothing, for callers in torch that no captured program reaches."""
_DENIED_OUT = re.compile(
    r"(?!_chunk_cat|_fft_|_foreach_|_linalg_|_native_batch_norm_legit|_(log_)?softmax)_.*|.*_backward"
    r"|mkldnn_rnn_layer|mse_loss|rrelu_with_noise|segment_reduce|smooth_l1_loss"
)
"""Those whose overloads with ``out=`` no public function calls: their kernels trust the size of ``out``."""
_KIND = re.compile(r"(Optional\[)?(.*?)(?(1)\])$")
_DENIED = (_DENIED_NAMES, _DENIED_LAYOUTS, _DENIED_BACKENDS, _DENIED_KERNELS)
_ATOMS = {"ScalarType": "dtype", "Layout": "layout", "Device": "device", "MemoryFormat": "memory_format"}
_NAMED_DIMENSIONS = re.compile(r".*(dimname|names).*", re.IGNORECASE)
_RETURN_NOTHING = re.compile(r"_foreach_.*_|_fused_.*_|_amp_foreach_.*_|_assert_async")

_STATISTICS = ("running_mean", "running_var")
_WRITES_WITHOUT_SAYING = {
    "aten.native_batch_norm.default": _STATISTICS,
    "aten.native_batch_norm.out": _STATISTICS,
    "aten.batch_norm.default": _STATISTICS,
    "aten._batch_norm_impl_index.default": _STATISTICS,
    "aten.batch_norm_update_stats.default": _STATISTICS,
    "aten.batch_norm_update_stats.out": _STATISTICS,
    "aten.instance_norm.default": _STATISTICS,
    "aten.mkldnn_rnn_layer_backward.default": ("workspace",),
}
"""Ops that write to arguments which their schema does not mark."""
_OPTIONAL_WITHOUT_SAYING = {"aten._scaled_dot_product_efficient_attention_backward.default": ("attn_bias",)}
"""Ops that torch calls without arguments which their schema says they need."""


def _schemas() -> Iterator[tuple[str, torch.FunctionSchema]]:
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        overload = schema.overload_name
        full_name = f"{schema.name}.{overload}" if overload else schema.name
        if schema.name.startswith("aten::") and full_name in dispatched:
            yield f"aten.{schema.name.removeprefix('aten::')}.{overload or 'default'}", schema


def _is_allowed(schema: torch.FunctionSchema) -> bool:
    name, overload = schema.name.removeprefix("aten::"), schema.overload_name
    types = [str(part.type) for part in (*schema.arguments, *schema.returns)]
    if not all(_TYPE.fullmatch(kind) for kind in types) or _NAMED_DIMENSIONS.fullmatch(overload):
        return False
    if any(denied.fullmatch(name) for denied in _DENIED):
        return False
    if _DENIED_OUT.fullmatch(name) and any(argument.is_out for argument in schema.arguments):
        return False
    if not schema.returns:
        return bool(_RETURN_NOTHING.fullmatch(name)) or overload.endswith("out")
    return any(_TENSOR_RETURN.fullmatch(str(part.type)) for part in schema.returns)


def allowed_ops() -> list[str]:
    """Return names such as ``aten.addmm.default``, sorted."""
    return sorted({op for op, schema in _schemas() if _is_allowed(schema)})


def table() -> Iterator[str]:
    """Return the lines of ``operators.txt``: each allowed op with its arguments, and whether it draws random
    numbers."""
    schemas = dict(sorted((op, schema) for op, schema in _schemas() if _is_allowed(schema)))
    for op, schema in schemas.items():
        written, optional = _WRITES_WITHOUT_SAYING.get(op, ()), _OPTIONAL_WITHOUT_SAYING.get(op, ())
        random = ("random",) if draws(_overload(op)) else ()
        yield " ".join((op, *(_described(one, written, optional) for one in schema.arguments), *random))


def _described(argument: Any, written: Sequence[str], may_be_none: Sequence[str]) -> str:
    """``name:kind``, then ``?`` where None is allowed, ``=`` where it may be left out, ``!`` where the op
    writes it. Before a name, ``*``: by keyword only."""
    optional, kind = _KIND.fullmatch(str(argument.real_type)).groups()  # type: ignore[union-attr]
    kind = _ATOMS.get(kind, kind)
    if kind.startswith("List["):
        inner = kind.removeprefix("List[").removesuffix("]")
        kind = f"{'Tensor?' if inner == 'Optional[Tensor]' else inner}[{argument.N or ''}]"
    alias = argument.alias_info
    writes = (alias is not None and alias.is_write) or argument.name in written
    takes_none = optional or argument.name in may_be_none
    marks = (("?", takes_none), ("=", argument.has_default_value()), ("!", writes))
    ends = "".join(mark for mark, meant in marks if meant)
    return f"{'*' if argument.kwarg_only else ''}{argument.name}:{kind}{ends}"


def _overload(op: str) -> Any:
    _, name, overload = op.split(".")
    return getattr(getattr(torch.ops.aten, name), overload)


if __name__ == "__main__":
    print("\n".join(table()))
