"""Sort ops into families that cost alike, and say how much work a call is in the unit of its family.

A family is measured on a device at a handful of sizes (:mod:`djinn_lab.srg.curves`), through the same rules:
what a probe's call is charged here is where its seconds lie on the curve. Units are FLOPs, moved bytes or
elements. A *lane* distinguishes calls of equal work that run at different rates: the shorter side of a matrix
product, the width of a softmax's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

import msgspec

from djinn_lab.srg.estimates import plain_name
from djinn_lab.srg.family_table import FAMILY_OF
from djinn_lab.srg.flops import OpCall
from djinn_lab.srg.ops import words
from djinn_lab.srg.program import DTYPE_BYTES, TensorMeta, row_major

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
SHARED_MAX = 50_000
_FLOAT_BYTES = {
    dtype: size if "float" in dtype or "complex" in dtype else 0 for dtype, size in DTYPE_BYTES.items()
}


class FamilyWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


def charge(name: str, call: OpCall, sizes: Sizes) -> FamilyWork:
    """``name``: base name of an op that computes something."""
    plain = plain_name(name)
    family = _special(name, plain, call) or FAMILY_OF.get(name) or FAMILY_OF.get(plain) or UNKNOWN
    work, lane = RULES.get(family, _bytes)(call, sizes)
    return _charge(family, _dtype(call), max(float(work), 1.0), max(float(lane), 1.0), _calls(name, call))


@lru_cache(SHARED_MAX)
def _charge(family: str, dtype: str, work: float, lane: float, calls: int) -> FamilyWork:
    """One object for equal charges: the pool keeps those of thousands of programs."""
    return FamilyWork(family, dtype, work, lane, calls)


def _dtype(call: OpCall) -> str:
    """The widest floating-point dtype in the call, else that of its first tensor."""
    dtypes = [meta.dtype for meta in (*call.outputs, *call.tensors)]
    return max(dtypes, key=_FLOAT_BYTES.__getitem__, default="float32")


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
    if not tensors:
        return 1, 1, 1
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
    """FLOPs; the lane is the number of queries. A gradient's comes first among the tensors of a backward."""
    query = 0 if len(call.tensors) < 6 else 1
    return sizes.flops, _size(call.tensors[query], 2) if len(call.tensors) > query else 1


def _channels(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """FLOPs; the lane is the number of channels that each output sees. A gradient has three results."""
    weight = 2 if len(call.output_slots) == 3 else 1
    return sizes.flops, _size(call.args[weight], 1) if len(call.args) > weight else 1


def _rows(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """Elements; the lane is the length of a row."""
    largest = max((*call.outputs, *call.tensors), key=lambda meta: meta.numel, default=None)
    return (largest.numel, largest.shape[-1]) if largest is not None and largest.shape else (1, 1)


def _indices(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """Rows that are added up, one after the other; the lane is what the result has in bytes."""
    rows = call.tensors[0].numel / max(_size(call.tensors[0], -1), 1) if call.tensors else 1
    return rows, sum(meta.nbytes for meta in call.outputs)


def _groups(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """Elements; the lane counts channels."""
    largest = max(call.tensors, key=lambda meta: meta.numel, default=None)
    return (1, 1) if largest is None else (largest.numel, _size(largest, 1))


def _size(meta: object, dim: int) -> int:
    """A tensor's size along a dimension, 1 where it has none."""
    shape = meta.shape if isinstance(meta, TensorMeta) else ()
    return shape[dim] if -len(shape) <= dim < len(shape) else 1


def _steps(call: OpCall, sizes: Sizes) -> tuple[float, float]:
    """FLOPs; the lane is the number of time steps."""
    return sizes.flops, _size(call.args[0], 0) if call.args else 1


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
    weight = call.argument(2 if backward else 1, "weight")
    transposed = call.argument(7 if backward else 6, "transposed", False) is True
    groups = call.argument(9 if backward else 8, "groups", 1)
    if plain == "mkldnn_convolution":
        transposed, groups = False, call.argument(6, "groups", 1)
    if transposed and not backward:
        return "convolution_transposed"
    shape = weight.shape if isinstance(weight, TensorMeta) else ()
    each = isinstance(groups, int) and groups > 1 and shape[1:2] == (1,)
    kind = "depthwise" if each else "convolution" if prod(shape[2:]) > 1 else "convolution_1x1"
    return f"{kind}_backward" if backward else kind


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
