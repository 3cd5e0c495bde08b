"""The operations of random programs: how each draws its arguments, and what it calls.

Results depend on the arguments and torch's seed alone: uninitialised memory is filled before it can be read,
and indices in tensors are within bounds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from sweeps.fuzz.steps import Ref
from torch.nn import functional as F

DTYPES = (
    *("float32",) * 6,
    *("float64", "float16", "bfloat16", "bool", "uint8", "int8", "int16", "int32"),
    *("int64",) * 3,
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
SHAPES = (
    (),
    (1,),
    (0,),
    (2,),
    (3,),
    (5,),
    (2, 3),
    (3, 2),
    (1, 4),
    (3, 3),
    (0, 3),
    (2, 3, 4),
    (2, 1, 3),
    (4, 1, 2, 3),
)
FLOATING = ("float32", "float64")


class NotApplicable(Exception):
    """The operation finds no arguments among the slots."""


class Slots:
    """The values that an operation may draw its arguments from."""

    def __init__(self, random: Random, values: dict[int, Any]) -> None:
        self.random = random
        self.values = values

    def tensor(self, wanted: Callable[[torch.Tensor], bool] = lambda tensor: True) -> Ref:
        """Draw a slot with a tensor, the latest ones more often. Raises NotApplicable."""
        found = [slot for slot, value in self.values.items() if _suits(value, wanted)]
        if not found:
            raise NotApplicable
        if len(found) > 3 and self.random.random() < 0.5:
            found = found[-3:]
        return Ref(self.random.choice(found))

    def array(self) -> Ref:
        found = [
            slot
            for slot, value in self.values.items()
            if isinstance(value, np.ndarray) and value.flags.writeable
        ]
        if not found:
            raise NotApplicable
        return Ref(self.random.choice(found))

    def of(self, reference: Ref) -> Any:
        return self.values[reference.slot]

    def other(self, reference: Ref) -> Ref | float | int:
        """Draw a second operand: a scalar or a tensor, more often a tensor that broadcasts."""
        if self.random.random() < 0.3:
            return self.scalar()
        shape = self.of(reference).shape
        if self.random.random() < 0.7:
            return self.tensor(lambda tensor: _broadcast(tensor.shape, shape))
        return self.tensor()

    def scalar(self) -> float | int:
        return self.random.choice((0, 1, -1, 2, 3, 0.5, -1.5, 2.0, 7, True, 1e-3))

    def dim(self, reference: Ref) -> int:
        count = max(self.of(reference).dim(), 1)
        return self.random.randrange(-count, count) if self.random.random() < 0.97 else count + 1

    def dtype(self) -> str:
        return self.random.choice(DTYPES)

    def shape(self) -> tuple[int, ...]:
        return self.random.choice(SHAPES)


def _suits(value: Any, wanted: Callable[[torch.Tensor], bool]) -> bool:
    """Whether a tensor suits a draw. Even ``is_leaf`` raises for a view that autograd has given up."""
    try:
        return isinstance(value, torch.Tensor) and wanted(value)
    except RuntimeError:
        return False


@dataclass(frozen=True)
class Operation:
    draw: Callable[[Slots], tuple[Any, ...]]
    call: Callable[..., Any]
    weight: float = 1.0


OPERATIONS: dict[str, Operation] = {}


_WRITING = ("set", "backward", "step", "array", "mask = ", "data =", "+=")


def writes(name: str) -> bool:
    """Whether the operation may change an existing value."""
    return "_" in name or ", out" in name or name.startswith(_WRITING)


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(left), reversed(right), strict=False))


def _add(
    name: str, draw: Callable[[Slots], tuple[Any, ...]], call: Callable[..., Any], weight: float = 1.0
) -> None:
    OPERATIONS[name] = Operation(draw, call, weight)


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def _one(slots: Slots) -> tuple[Any, ...]:
    return (slots.tensor(),)


def _pair(slots: Slots) -> tuple[Any, ...]:
    first = slots.tensor()
    return first, slots.other(first)


def _with_dim(slots: Slots) -> tuple[Any, ...]:
    first = slots.tensor()
    return first, slots.dim(first)


# Creation

LAYOUTS = ("plain", "plain", "plain", "transposed", "strided", "expanded", "offset", "conj", "neg")


@cache
def _numbers(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.asarray(np.random.RandomState(seed).randint(-4, 5, shape), dtype=np.float64)


def make(dtype: str, shape: tuple[int, ...], seed: int, layout: str, requires_grad: bool) -> torch.Tensor:
    """Make a tensor of small numbers from the arguments alone, without torch's generator."""
    kind = _dtype(dtype)
    if layout == "strided":
        shape = (*shape[:-1], shape[-1] * 2) if shape else shape
    whole = not kind.is_floating_point and not kind.is_complex
    data = torch.as_tensor(np.asarray(_numbers(shape, seed) / (1 if whole else 2)))
    if kind.is_complex:
        data = torch.complex(data, data.flip(0) if data.dim() else data)
    if kind is torch.bool or kind is torch.uint8:
        data = data.abs()
    tensor = data.to(kind)
    if layout == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(-1, 0)
    elif layout == "strided" and tensor.dim():
        tensor = tensor[..., ::2]
    elif layout == "expanded":
        tensor = tensor.expand(2, *tensor.shape)
    elif layout == "offset" and tensor.numel() > 1:
        tensor = tensor.reshape(-1)[1:]
    elif layout == "conj" and kind.is_complex:
        tensor = tensor.conj()
    elif layout == "neg" and kind.is_floating_point and tensor.element_size() > 1:
        tensor = torch._neg_view(tensor)
    return tensor.detach().requires_grad_() if requires_grad else tensor


def draw_make(slots: Slots) -> tuple[Any, ...]:
    dtype = slots.dtype()
    differentiable = dtype in FLOATING and slots.random.random() < 0.25
    layout = slots.random.choice(LAYOUTS)
    return dtype, slots.shape(), slots.random.randrange(1000), layout, differentiable


def _factory(name: str) -> Callable[..., torch.Tensor]:
    def call(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        made: torch.Tensor = getattr(torch, name)(shape, dtype=_dtype(dtype))
        return made

    return call


_add("make", draw_make, make, 3)
for _name in ("zeros", "ones"):
    _add(_name, lambda s: (s.shape(), s.dtype()), _factory(_name), 0.5)
for _name in ("rand", "randn"):
    _add(_name, lambda s: (s.shape(), s.random.choice(FLOATING)), _factory(_name), 0.5)
_add(
    "full",
    lambda s: (s.shape(), s.scalar(), s.dtype()),
    lambda n, v, d: torch.full(n, v, dtype=_dtype(d)),
    0.5,
)
_add(
    "arange", lambda s: (s.random.randrange(7), s.dtype()), lambda n, d: torch.arange(n, dtype=_dtype(d)), 0.5
)
_add(
    "tensor",
    lambda s: (s.random.choice((1, 2.5, True, (1, 2), (), ((1.0, 2.0), (3.0, 4.0)))),),
    torch.tensor,
    0.5,
)
_add(
    "randint",
    lambda s: (s.random.randrange(1, 9), s.shape()),
    lambda n, shape: torch.randint(0, n, shape),
    0.5,
)
_add("randperm", lambda s: (s.random.randrange(6),), torch.randperm, 0.3)
_add(
    "array",
    lambda s: (s.shape(), s.random.randrange(100)),
    lambda n, k: np.random.RandomState(k).rand(*n),
    0.5,
)
_add("from_numpy", lambda s: (s.array(),), torch.from_numpy, 1.0)
for _name in ("zeros_like", "ones_like", "rand_like"):
    _add(_name, _one, getattr(torch, _name), 0.4)
_add("empty_like.fill_", lambda s: (s.tensor(), s.scalar()), lambda x, v: torch.empty_like(x).fill_(v), 0.4)
_add("new_full", lambda s: (s.tensor(), s.shape(), s.scalar()), lambda x, n, v: x.new_full(n, v), 0.4)

# Pointwise

UNARY = [
    "neg",
    "abs",
    "exp",
    "sqrt",
    "sin",
    "tanh",
    "sigmoid",
    "relu",
    "floor",
    "round",
    "sign",
    "reciprocal",
    "log1p",
    "logical_not",
    "bitwise_not",
    "isnan",
    "isfinite",
    "conj",
    "resolve_conj",
    "resolve_neg",
    "conj_physical",
    "angle",
    "square",
    "erf",
    "trunc",
    "positive",
    "nan_to_num",
    "clone",
    "contiguous",
    "detach",
]
for _name in UNARY:
    _add(_name, _one, lambda x, _name=_name: getattr(torch.Tensor, _name)(x), 0.6)
INPLACE = [
    "neg_",
    "abs_",
    "exp_",
    "sigmoid_",
    "relu_",
    "floor_",
    "round_",
    "sign_",
    "zero_",
    "logical_not_",
    "conj_physical_",
    "square_",
    "erf_",
    "sin_",
]
for _name in INPLACE:
    _add(_name, _one, lambda x, _name=_name: getattr(torch.Tensor, _name)(x), 0.4)
_add("fill_", lambda s: (s.tensor(), s.scalar()), lambda x, v: x.fill_(v))
_add("clamp_", lambda s: (s.tensor(), -1, 2), lambda x, low, high: x.clamp_(low, high), 0.5)
for _name in ("normal_", "uniform_", "bernoulli_", "random_"):
    _add(_name, _one, lambda x, _name=_name: getattr(torch.Tensor, _name)(x), 0.25)
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "eq",
    "lt",
    "ne",
    "ge",
    "logical_and",
    "bitwise_and",
    "bitwise_xor",
    "atan2",
    "fmod",
    "remainder",
    "floor_divide",
    "copysign",
    "hypot",
    "logaddexp",
]
for _name in BINARY:
    _add(_name, _pair, lambda x, y, _name=_name: getattr(torch, _name)(x, y), 0.7)
for _name in [
    "add_",
    "sub_",
    "mul_",
    "div_",
    "copy_",
    "pow_",
    "remainder_",
    "logical_and_",
    "bitwise_or_",
    "eq_",
    "lt_",
]:
    _add(_name, _pair, lambda x, y, _name=_name: getattr(torch.Tensor, _name)(x, y), 0.8)
_add("where", lambda s: (s.tensor(), *_pair(s)), lambda c, x, y: torch.where(c.bool(), x, y))
_add("lerp", lambda s: (s.tensor(), s.tensor(), 0.25), torch.lerp, 0.5)
_add(
    "addcmul_", lambda s: (s.tensor(), s.tensor(), s.tensor()), lambda x, y, z: x.addcmul_(y, z, value=2), 0.5
)
_add(
    "masked_fill_",
    lambda s: (s.tensor(), s.tensor(), s.scalar()),
    lambda x, m, v: x.masked_fill_(m.bool(), v),
)
_add("to", lambda s: (s.tensor(), s.dtype()), lambda x, d: x.to(_dtype(d)), 2)
_add("type_as", lambda s: (s.tensor(), s.tensor()), lambda x, y: x.type_as(y), 0.5)
_add("+=", _pair, lambda x, y: x.__iadd__(y), 0.5)

# Results written into given tensors

for _name in ("add", "mul", "sub", "maximum", "eq", "matmul"):
    _add(
        f"{_name}, out",
        lambda s: (*_pair(s), s.tensor()),
        lambda x, y, o, _name=_name: getattr(torch, _name)(x, y, out=o),
        0.5,
    )
for _name in ("exp", "neg", "abs", "sum", "cumsum", "sort"):
    _add(
        f"{_name}, out",
        lambda s, _name=_name: (s.tensor(), s.tensor()),
        lambda x, o, _name=_name: _out(_name, x, o),
        0.4,
    )
_add(
    "cat, out", lambda s: (s.tensor(), s.tensor(), s.tensor()), lambda x, y, o: torch.cat((x, y), out=o), 0.4
)


def _out(name: str, x: torch.Tensor, out: torch.Tensor) -> Any:
    if name == "sort":
        return torch.sort(x, out=(out, torch.zeros(0, dtype=torch.int64)))[0]
    arguments = (0,) if name in ("sum", "cumsum") else ()
    return getattr(torch, name)(x, *arguments, out=out)


# Views


def draw_as_strided(slots: Slots) -> tuple[Any, ...]:
    base = slots.tensor()
    elements = slots.of(base).untyped_storage().nbytes() // slots.of(base).element_size()
    for _ in range(8):
        size = tuple(slots.random.randrange(1, 4) for _ in range(slots.random.randrange(0, 3)))
        stride = tuple(slots.random.randrange(0, 4) for _ in size)
        offset = slots.random.randrange(0, 3)
        if 1 + offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) <= elements:
            return base, size, stride, offset
    raise NotApplicable


def draw_reshape(slots: Slots) -> tuple[Any, ...]:
    base = slots.tensor()
    numel = slots.of(base).numel()
    shapes = [(-1,), (numel,), (1, numel), (numel, 1)]
    shapes += [(2, -1)] if numel % 2 == 0 and numel else [(3, numel // 3)]
    return base, slots.random.choice(shapes)


def draw_permutation(slots: Slots) -> tuple[Any, ...]:
    base = slots.tensor()
    order = list(range(slots.of(base).dim()))
    slots.random.shuffle(order)
    return base, tuple(order)


def draw_narrow(slots: Slots) -> tuple[Any, ...]:
    base = slots.tensor(lambda tensor: tensor.dim() > 0)
    dim = slots.dim(base)
    size = slots.of(base).shape[dim] if -slots.of(base).dim() <= dim < slots.of(base).dim() else 1
    start = slots.random.randrange(size + 1)
    return base, dim, start, slots.random.randrange(size - start + 1)


VIEWS = [
    "t",
    "T",
    "mT",
    "H",
    "real",
    "imag",
    "view_as_real",
    "view_as_complex",
    "squeeze",
    "ravel",
    "flatten",
    "data",
    "_conj",
    "_neg_view",
    "adjoint",
]


def _view(name: str) -> Callable[[torch.Tensor], Any]:
    def call(x: torch.Tensor) -> Any:
        if name in ("_conj", "_neg_view", "view_as_real", "view_as_complex"):
            return getattr(torch, name)(x)
        found = getattr(x, name)
        return found() if callable(found) and not isinstance(found, torch.Tensor) else found

    return call


for _name in VIEWS:
    _add(_name, _one, _view(_name), 0.5)
_add("view", draw_reshape, lambda x, shape: x.view(shape))
_add("reshape", draw_reshape, lambda x, shape: x.reshape(shape))
_add("permute", draw_permutation, lambda x, order: x.permute(order))
_add("transpose", lambda s: (*_with_dim(s), 0), lambda x, a, b: x.transpose(a, b))
_add("unsqueeze", _with_dim, lambda x, dim: x.unsqueeze(dim), 0.6)
_add("select", lambda s: (*_with_dim(s), s.random.choice((0, -1))), lambda x, dim, i: x.select(dim, i))
_add("narrow", draw_narrow, lambda x, dim, start, length: x.narrow(dim, start, length))
_add("expand", lambda s: (s.tensor(),), lambda x: x.expand(2, *x.shape), 0.6)
_add("expand_as", lambda s: (s.tensor(), s.tensor()), lambda x, y: x.expand_as(y), 0.4)
_add("diagonal", _one, lambda x: x.diagonal(), 0.5)
_add("unfold", lambda s: (*_with_dim(s), 2, 1), lambda x, dim, size, step: x.unfold(dim, size, step), 0.4)
_add("view dtype", lambda s: (s.tensor(), s.dtype()), lambda x, d: x.view(_dtype(d)), 0.6)
_add("as_strided", draw_as_strided, lambda x, n, st, o: x.as_strided(n, st, o), 1.5)
for _part in (0, -1):
    _add(f"chunk[{_part}]", _with_dim, lambda x, dim, _part=_part: x.chunk(2, dim)[_part], 0.4)
    _add(f"unbind[{_part}]", _with_dim, lambda x, dim, _part=_part: x.unbind(dim)[_part], 0.4)
    _add(f"split[{_part}]", _with_dim, lambda x, dim, _part=_part: x.split(1, dim)[_part], 0.4)

# Indexing


def draw_index(slots: Slots) -> tuple[Any, ...]:
    """Draw a valid index: numbers, slices, None, an ellipsis, masks and positions."""
    base = slots.tensor()
    found: list[Any] = []
    for size in slots.of(base).shape[: slots.random.randrange(1, 4)]:
        kind = slots.random.randrange(6)
        if kind == 0 and size:
            found.append(slots.random.randrange(-size, size))
        elif kind == 1:
            found.append(slice(slots.random.choice((None, 0, 1)), None, slots.random.choice((None, 1, 2))))
        elif kind == 2:
            found.append(slice(None, -1))
        elif kind == 3 and size:
            found.append(tuple(slots.random.randrange(size) for _ in range(slots.random.randrange(1, 4))))
        elif kind == 4:
            found += [None, slice(None)]
        else:
            found.append(slice(None))
    if slots.random.random() < 0.2:
        found.append(...)
    return base, tuple(found)


def _index(written: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(torch.tensor(item) if isinstance(item, tuple) else item for item in written)


def setitem(x: torch.Tensor, index: tuple[Any, ...], value: Any) -> torch.Tensor:
    x[_index(index)] = value
    return x


def positions(x: torch.Tensor, dim: int, raw: torch.Tensor) -> torch.Tensor:
    """Make valid positions along ``dim`` from the elements of ``raw``."""
    numbers = torch.nan_to_num(raw.detach().to(torch.float32)) if not raw.is_complex() else raw.real
    return numbers.reshape(-1).to(torch.int64).remainder(max(x.shape[dim], 1) if x.dim() else 1)


def _gather(x: torch.Tensor, dim: int, raw: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, positions(x, dim, raw))


def _index_put(x: torch.Tensor, raw: torch.Tensor, value: Any, accumulate: bool) -> torch.Tensor:
    value = torch.as_tensor(value, dtype=x.dtype)
    return x.index_put_((positions(x, 0, raw),), value, accumulate=accumulate)


_SMALL = ("float32", "int64", "int32", "uint8", "bool", "float64", "int8", "int16")


def _positions(slots: Slots) -> Ref:
    return slots.tensor(lambda tensor: str(tensor.dtype).removeprefix("torch.") in _SMALL)


_add("getitem", draw_index, lambda x, index: x[_index(index)], 3)
_add("setitem", lambda s: (*draw_index(s), s.scalar()), setitem, 2)
_add("setitem tensor", lambda s: (*draw_index(s), s.tensor()), setitem, 1)
_add(
    "mask",
    lambda s: (lambda x: (x, s.tensor(lambda t: t.shape == s.of(x).shape)))(s.tensor()),
    lambda x, m: x[m.bool()],
)
_add(
    "mask = ", lambda s: (s.tensor(), s.tensor(), s.scalar()), lambda x, m, v: setitem(x, (m.bool(),), v), 0.5
)
_add("index_select", lambda s: (*_with_dim(s), _positions(s)), _gather)
_add("index_put_", lambda s: (s.tensor(), _positions(s), s.scalar(), s.random.random() < 0.5), _index_put)
_add("masked_select", lambda s: (s.tensor(), s.tensor()), lambda x, m: x.masked_select(m.bool()), 0.5)
_add("nonzero", _one, lambda x: x.nonzero(), 0.6)
_add("unique", _one, lambda x: x.unique(), 0.4)
_add(
    "take",
    lambda s: (s.tensor(), _positions(s)),
    lambda x, p: x.reshape(-1)[positions(x.reshape(-1), 0, p)],
    0.4,
)
_add(
    "index_add_",
    lambda s: (s.tensor(), s.tensor()),
    lambda x, y: x.index_add_(0, torch.arange(min(len(x), len(y))), y),
    0.4,
)
_add(
    "index_fill_",
    lambda s: (*_with_dim(s), _positions(s)),
    lambda x, dim, p: x.index_fill_(dim, positions(x, dim, p), 3),
    0.4,
)

# Reductions, sorting, products, layers

for _name in [
    "sum",
    "mean",
    "prod",
    "max",
    "min",
    "argmax",
    "any",
    "all",
    "std",
    "amax",
    "norm",
    "median",
    "count_nonzero",
    "logsumexp",
]:
    _add(
        f"{_name}()",
        _one,
        lambda x, _name=_name: getattr(torch, _name)(x, *((0,) if _name == "logsumexp" else ())),
        0.4,
    )
for _name in [
    "sum",
    "mean",
    "prod",
    "amax",
    "any",
    "cumsum",
    "cumprod",
    "softmax",
    "argmin",
    "var",
    "logcumsumexp",
]:
    _add(f"{_name}(dim)", _with_dim, lambda x, dim, _name=_name: getattr(torch, _name)(x, dim), 0.4)
for _name in ["max", "min", "sort", "topk", "median", "cummax", "kthvalue"]:
    _add(
        _name,
        _with_dim,
        lambda x, dim, _name=_name: getattr(torch, _name)(
            x, *((1,) if _name in ("topk", "kthvalue") else ()), dim
        )[0],
        0.3,
    )
for _name in ("matmul", "outer", "kron", "cross", "cdist"):
    _add(
        _name, lambda s: (s.tensor(), s.tensor()), lambda x, y, _name=_name: getattr(torch, _name)(x, y), 0.5
    )
_add(
    "cat",
    lambda s: (s.tensor(), s.tensor(), s.random.choice((0, -1))),
    lambda x, y, dim: torch.cat((x, y), dim),
)
_add(
    "stack",
    lambda s: (lambda x: (x, s.tensor(lambda t: t.shape == s.of(x).shape)))(s.tensor()),
    lambda x, y: torch.stack((x, y)),
)
_add("flip", _with_dim, lambda x, dim: x.flip(dim), 0.5)
_add("roll", lambda s: (s.tensor(), 1), lambda x, n: x.roll(n), 0.4)
_add("repeat", _one, lambda x: x.repeat(2, *(1 for _ in x.shape)), 0.4)
_add("repeat_interleave", _one, lambda x: x.repeat_interleave(2), 0.3)
_add("tril", _one, torch.tril, 0.3)
_add("diag", _one, torch.diag, 0.3)
_add("einsum", lambda s: (s.tensor(), s.tensor()), lambda x, y: torch.einsum("...i,...i->...", x, y), 0.3)
_add("linear", lambda s: (s.tensor(), s.tensor()), F.linear, 0.4)
_add("layer_norm", _one, lambda x: F.layer_norm(x, x.shape[-1:]), 0.3)
_add("dropout", _one, lambda x: F.dropout(x, 0.5), 0.4)
_add("gelu", _one, F.gelu, 0.3)
_add("pad", _one, lambda x: F.pad(x, (1, 0)), 0.3)
_add("embedding", lambda s: (_positions(s), s.tensor()), lambda p, w: F.embedding(positions(w, 0, p), w), 0.3)
_add("interpolate", _one, lambda x: F.interpolate(x, scale_factor=2), 0.2)

# Values that Python reads

_add("item", lambda s: (s.tensor(lambda t: t.numel() == 1),), lambda x: x.item())
_add("tolist", _one, lambda x: x.tolist(), 0.5)
_add("bool", lambda s: (s.tensor(lambda t: t.numel() == 1),), bool, 0.5)
_add("float", lambda s: (s.tensor(lambda t: t.numel() == 1),), float, 0.5)
_add("repr", _one, repr, 0.4)
_add("numpy copy", _one, lambda x: x.detach().numpy().copy(), 0.6)
_add("numpy", _one, lambda x: x.detach().numpy(), 0.4)
_add("equal", lambda s: (s.tensor(), s.tensor()), torch.equal, 0.5)
_add(
    "metadata",
    _one,
    lambda x: (x.dtype, x.shape, x.storage_offset(), x.is_contiguous(), x.requires_grad, x.is_leaf),
    0.6,
)
_add("is_set_to", lambda s: (s.tensor(), s.tensor()), lambda x, y: x.is_set_to(y), 0.3)
_add("deepcopy", _one, copy.deepcopy, 0.4)
_add("array write", lambda s: (s.array(), s.random.randrange(5)), lambda a, v: np.ndarray.fill(a, v), 0.5)

# Storage


def resize(x: torch.Tensor, shape: tuple[int, ...], elements: int) -> torch.Tensor:
    """Resize, and fill the whole storage, whose new part is uninitialised."""
    x.resize_(shape)
    x.as_strided((elements,), (1,), 0).fill_(2)
    return x


def draw_resize(slots: Slots) -> tuple[Any, ...]:
    base, shape = slots.tensor(), slots.shape()
    tensor = slots.of(base)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    numel = int(np.prod(shape))
    return base, shape, max(elements, tensor.storage_offset() + numel if numel else 0)


def set_to_storage(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Set a tensor to a storage, and fill the storage if it grew."""
    storage = y.untyped_storage()
    grows = storage.nbytes() < x.element_size()
    x.set_(storage, 0, (1,))
    return x.detach().fill_(2) if grows else x


def assign_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y.detach()
    return x


_add("resize_", draw_resize, resize, 0.6)
_add("set_", lambda s: (s.tensor(), s.tensor()), lambda x, y: x.set_(y), 0.5)
_add(
    "set_ to storage",
    lambda s: (s.tensor(), s.tensor()),
    set_to_storage,
    0.3,
)
_add("set_ to nothing", _one, lambda x: x.set_(), 0.2)
_add("as_strided_", draw_as_strided, lambda x, n, st, o: x.as_strided_(n, st, o), 0.4)
_add("data =", lambda s: (s.tensor(), s.tensor()), assign_data, 0.6)
for _name in ("t_", "squeeze_", "detach_"):
    _add(_name, _one, lambda x, _name=_name: getattr(torch.Tensor, _name)(x), 0.3)
_add("unsqueeze_", _with_dim, lambda x, dim: x.unsqueeze_(dim), 0.3)
_add("swapaxes_", lambda s: (*_with_dim(s), 0), lambda x, a, b: x.swapaxes_(a, b), 0.3)

# Gradients


def backward(x: torch.Tensor) -> None:
    x.sum().backward()


def step(x: torch.Tensor) -> torch.Tensor:
    """Do a step of gradient descent by hand."""
    with torch.no_grad():
        return x.sub_(x.grad, alpha=0.5)


_add(
    "requires_grad_",
    lambda s: (s.tensor(lambda t: t.is_floating_point()),),
    lambda x: x.requires_grad_(),
    0.5,
)
_add("backward", lambda s: (s.tensor(lambda t: t.requires_grad),), backward, 1.5)
_add("grad", lambda s: (s.tensor(lambda t: t.grad is not None),), lambda x: x.grad, 0.6)
_add("step", lambda s: (s.tensor(lambda t: t.grad is not None),), step, 0.6)
_add(
    "autograd.grad",
    lambda s: (s.tensor(lambda t: t.requires_grad and t.is_leaf),),
    lambda x: torch.autograd.grad((x * x).sum(), x)[0],
    0.5,
)
_add("no_grad add_", _pair, lambda x, y: torch.no_grad()(x.add_)(y), 0.4)
_add(
    "inference",
    _one,
    lambda x: torch.inference_mode()(lambda: (x.t() if x.dim() < 3 else x).contiguous().clone())(),
    0.3,
)
