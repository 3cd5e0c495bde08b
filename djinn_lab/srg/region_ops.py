"""Ops that a region may have, and how one reads a number that is another in each run.

The lists have what a compiler computes as torch does, within rounding, whatever the data are. A recording
starts the ops' own kernels, so it may have more: a place that data name wrongly is a fault of the device
then, after which the ops run one by one, and the one that is to blame is named."""

from __future__ import annotations

import re

from djinn_lab.srg.ops import leaves_of, random_ops, words
from djinn_lab.srg.program import NodeRecord, ScalarHole, Template, TensorHole, row_major
from djinn_lab.srg.wiring import Wiring

_VIEWS = words("""
    view _unsafe_view _reshape_alias reshape t transpose permute expand unsqueeze squeeze slice select split
    split_with_sizes unbind detach alias chunk narrow diagonal unfold
    """)
_COMPUTED = words("""
    mm addmm bmm baddbmm mv dot linear matmul convolution
    abs add sub rsub mul neg sign ceil floor round trunc relu threshold threshold_backward clamp clamp_min
    clamp_max maximum minimum hardtanh hardtanh_backward leaky_relu leaky_relu_backward square addcmul lerp
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward sigmoid_backward tanh_backward
    mse_loss_backward native_dropout_backward
    eq ne gt ge lt le isnan isinf logical_and logical_or logical_xor logical_not bitwise_and bitwise_or
    bitwise_not where masked_fill mse_loss
    div reciprocal sqrt rsqrt addcdiv exp exp2 expm1 log log2 log10 log1p sigmoid silu silu_backward softplus
    softplus_backward elu elu_backward log_sigmoid_forward tanh sinh cosh asinh acosh atanh mish tan atan pow
    sin cos erf gelu gelu_backward
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    native_layer_norm native_layer_norm_backward _fused_rms_norm native_group_norm
    _native_batch_norm_legit_no_training
    sum mean amax amin var var_mean std std_mean prod logsumexp linalg_vector_norm
    clone _to_copy contiguous cat stack slice_backward select_backward constant_pad_nd tril triu
    zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full scalar_tensor arange fill
    avg_pool2d _adaptive_avg_pool2d
    """)
_WRITTEN = words("""
    add_ sub_ mul_ div_ neg_ abs_ relu_ exp_ log_ sqrt_ rsqrt_ reciprocal_ tanh_ sigmoid_ lerp_ addcmul_
    addcdiv_ clamp_ clamp_min_ clamp_max_ masked_fill_ copy_ zero_ fill_
    """)
_READ_BY_DATA = words("""
    embedding index index_select gather index_copy index_put scatter argmax argmin max min any all topk sort
    cumsum remainder _scaled_dot_product_flash_attention_for_cpu
    """)
_WRITTEN_BY_DATA = words("index_copy_ index_put_ index_add_ index_fill_ scatter_ scatter_add_")
_INDEXED = words("index index_put index_put_")
"""Those for which a mask would be counted on the host."""
_DIVISIONS = frozenset(("div", "div_"))
"""Of whole numbers they end a process that divides by 0 where torch raises."""
_DTYPES = words("float16 bfloat16 float32 float64 bool uint8 int8 int16 int32 int64")
_PLAIN_TEXT = re.compile(r"\w{0,32}")
_GROWS_CACHE_RANK, _GROWS_CACHE_ALONG = 4, (-2, 2)
"""Tensors with so many dimensions that are put together along this one may be key-value caches, which a
session follows."""

_HOLE, _NUMBER = TensorHole(), ScalarHole()
_DIRECT = words("aten.add.Tensor aten.sub.Tensor aten.mul.Tensor aten.div.Tensor")
_DIRECT |= words("aten.add_.Tensor aten.sub_.Tensor aten.mul_.Tensor aten.div_.Tensor")
_SCALED = {
    **dict.fromkeys(words("aten.addcdiv.default aten.addcdiv_.default"), "aten.div.Tensor"),
    **dict.fromkeys(words("aten.addcmul.default aten.addcmul_.default"), "aten.mul.Tensor"),
}


def is_eligible(wiring: Wiring, index: int, varies: bool, recorded: bool = False) -> bool:
    """Return whether a node may be in a region. ``varies``: its numbers are others in each run. ``recorded``:
    the kernels of a GPU are recorded, and nothing is compiled."""
    program = wiring.program
    node = program.nodes[index]
    template, name = program.templates[node.template], wiring.names[node.template]
    if node.dynamic or template.op in random_ops() or not node.outputs or None in node.outputs[:1]:
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    metas = [wiring.metas[value] for value in values]
    if any(meta is None or meta.dtype not in _DTYPES for meta in metas):
        return False
    if any(isinstance(leaf, str) and not _PLAIN_TEXT.fullmatch(leaf) for leaf in leaves_of(template)):
        return False
    if varies and not _may_vary(wiring, node, template):
        return False
    if wiring.views[index]:
        return name in _VIEWS
    if not (_is_recordable(wiring, node, name) if recorded else _is_harmless(wiring, node, name)):
        return False
    if wiring.writes[index]:
        written = _WRITTEN | _WRITTEN_BY_DATA if recorded else _WRITTEN
        return name in written and _writes_plainly(wiring, node)
    computed = _COMPUTED | _READ_BY_DATA if recorded else _COMPUTED
    return name in computed | _VIEWS and _makes_new_memory(wiring, node)


def _makes_new_memory(wiring: Wiring, node: NodeRecord) -> bool:
    """Return whether each result has memory of its own."""
    read = {wiring.storages[value] for value in node.inputs if value is not None}
    made = [storage for storage in node.storages if storage is not None]
    return len({*made}) == len(made) and read.isdisjoint(made)


def _writes_plainly(wiring: Wiring, node: NodeRecord) -> bool:
    """Return whether the op writes its first input alone, which has no gaps and lies in row-major order."""
    written = node.inputs[0]
    if written is None or node.outputs != (written,) or written in node.inputs[1:]:
        return False
    meta = wiring.metas[written]
    return meta is not None and meta.stride == row_major(meta.shape)


def _is_harmless(wiring: Wiring, node: NodeRecord, name: str) -> bool:
    results = [wiring.metas[value] for value in node.outputs if value is not None]
    if name in _DIVISIONS:
        return all(meta is not None and "float" in meta.dtype for meta in results)
    return not may_grow_cache(wiring, node)


def _is_recordable(wiring: Wiring, node: NodeRecord, name: str) -> bool:
    """Return whether no kernel of the op waits for the host."""
    if name in _INDEXED:
        read = [wiring.metas[value] for value in node.inputs[1:] if value is not None]
        return all(meta is not None and meta.dtype not in ("bool", "uint8") for meta in read)
    return not may_grow_cache(wiring, node)


def may_grow_cache(wiring: Wiring, node: NodeRecord) -> bool:
    """Return whether the op may put new keys or values behind those of a cache."""
    template = wiring.program.templates[node.template]
    if template.op != "aten.cat.default" or not any(one in template.args for one in _GROWS_CACHE_ALONG):
        return False
    meta = wiring.metas[node.outputs[0]] if node.outputs[0] is not None else None
    return meta is None or len(meta.shape) == _GROWS_CACHE_RANK


def _may_vary(wiring: Wiring, node: NodeRecord, template: Template) -> bool:
    """Return whether the op can read its one number as a tensor: see :func:`with_number_as_tensor`."""
    metas = [wiring.metas[value] for value in (*node.inputs, *node.outputs) if value is not None]
    alike = len({(meta.dtype, meta.shape) for meta in metas if meta is not None}) == 1
    known = bool(with_number_as_tensor(template)) and len(node.scalars) == 1
    return known and alike and metas[0] is not None and metas[0].dtype in ("float32", "float64")


def with_number_as_tensor(template: Template) -> tuple[Template, ...]:
    """Return ops that compute what an op does, up to rounding, with a tensor of one element for its one
    number; nothing for an op of which that is not known. The last one takes the first input of the op and
    what the one before it made; the others take the op's other inputs, and the number last. One op by itself
    takes its input and the number."""
    op, args, kwargs = template.op, template.args, template.kwargs
    inplace = op.split(".")[1].endswith("_")
    add = Template(f"aten.add{'_' if inplace else ''}.Tensor", [_HOLE, _HOLE], {})
    scale = Template("aten.mul.Tensor", [_HOLE, _HOLE], {})
    if op in _DIRECT and args == [_HOLE, _NUMBER] and not kwargs:
        return (Template(op, [_HOLE, _HOLE], {}),)
    if op == add.op and args == [_HOLE, _HOLE] and kwargs == {"alpha": _NUMBER}:
        return (scale, add)
    if op in _SCALED and args == [_HOLE] * 3 and kwargs == {"value": _NUMBER}:
        return (Template(_SCALED[op], [_HOLE, _HOLE], {}), scale, add)
    return ()
