"""The ops by which a device is measured: of every family a few, at a handful of sizes.

Each entry makes tensors and returns a call of torch with one op of the family. Sizes are elements, or a side
of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

aten = torch.ops.aten
Call = Callable[[], object]
SIZES = (64, 4096, 65536, 2**20, 2**22)
FEW_SIZES = (64, 16384, 2**20)
CUDA_SIZES = (2**24,)
"""Beside the others: what fills a GPU."""


class Probe(NamedTuple):
    """``family``: of the op that counts where a call has several."""

    call: Call
    family: str | None = None


Make = Callable[["Maker"], Iterator[Probe]]


class Maker:
    """Makes tensors on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.large: Sequence[int] = CUDA_SIZES if device.type == "cuda" else ()

    def sizes(self, few: bool = False) -> Sequence[int]:
        return (*(FEW_SIZES if few else SIZES), *self.large)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(dtype)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=self.device)


def all_probes(device: torch.device) -> Iterator[Probe]:
    """Make every probe in turn; its tensors are freed with it."""
    maker = Maker(device)
    for make in _TABLE:
        yield from make(maker)


# -- products ------------------------------------------------------------------------------------------------

MATMULS = (
    (1, ((64, 64), (256, 256), (1024, 1024), (2048, 2048))),
    (4, ((64, 64), (256, 256), (1024, 1024))),
    (16, ((16, 16), (64, 64), (256, 256), (1024, 1024))),
    (64, ((64, 64), (256, 256), (1024, 1024))),
    (256, ((256, 256), (512, 512), (1024, 1024))),
)
"""Rows, and inner size and columns."""


def _matmuls(maker: Maker) -> Iterator[Probe]:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        rows = MATMULS if dtype is torch.float32 else MATMULS[::4]
        for count, weights in rows:
            for inner, columns in weights[:2] if dtype is not torch.float32 else weights:
                x, bias = maker.randn(count, inner, dtype=dtype), maker.randn(columns, dtype=dtype)
                weight = maker.randn(columns, inner, dtype=dtype).t()
                yield Probe(partial(aten.addmm.default, bias, x, weight))
    for side in (4096,) if maker.large else ():
        yield Probe(partial(aten.mm.default, maker.randn(side, side), maker.randn(side, side)))
    for inner in (1, 8, 32):
        for side in (64, 256, 1024):
            if inner < side:
                yield Probe(partial(aten.mm.default, maker.randn(side, inner), maker.randn(inner, side)))


def _batched(maker: Maker) -> Iterator[Probe]:
    for side, batches in ((1, (4, 64)), (8, (4, 64, 512)), (32, (4, 64, 256)), (128, (4, 32))):
        for batch in batches:
            wide = max(side, 64)
            left = maker.randn(batch, side, wide)
            yield Probe(partial(aten.bmm.default, left, maker.randn(batch, wide, wide)))


def _attention(maker: Maker) -> Iterator[Probe]:
    for queries, keys in ((1, (16, 128, 1024)), (16, (16, 128)), (128, (128, 512)), (512, (512,))):
        for length in keys:
            for heads in (2, 8):
                query = maker.randn(1, heads, queries, 64)
                key, value = maker.randn(1, heads, length, 64), maker.randn(1, heads, length, 64)
                attend = partial(torch.nn.functional.scaled_dot_product_attention, query, key, value)
                yield Probe(attend, "attention")
    function = torch.nn.functional.scaled_dot_product_attention
    for queries in (16, 64, 256):
        for heads in (2, 8):
            tensors = [maker.randn(1, heads, queries, 64).requires_grad_() for _ in range(3)]
            yield Probe(partial(_backward, function, tensors), "attention_backward")


def _backward(function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]) -> object:
    with torch.enable_grad():
        result = function(*tensors)
        return torch.autograd.grad(result, tensors, torch.ones_like(result))


CONVOLUTIONS = ((3, 16), (16, 16), (64, 64), (256, 256))
"""Channels in and out."""


def _convolutions(maker: Maker) -> Iterator[Probe]:
    convolve = torch.nn.functional.conv2d
    for inside, outside in CONVOLUTIONS:
        for side, batch in ((8, 1), (16, 2), (32, 4)):
            for kernel in (3, 1):
                if inside * outside * side * side * batch * kernel > 2**29:
                    continue
                x, weight = (
                    maker.randn(batch, inside, side, side),
                    maker.randn(outside, inside, kernel, kernel),
                )
                padding = kernel // 2
                yield Probe(partial(convolve, x, weight, padding=padding))
                gradients = partial(_convolve_back, x.requires_grad_(), weight.requires_grad_(), padding, 1)
                yield Probe(gradients, f"convolution{'' if kernel > 1 else '_1x1'}_backward")
    for channels in (16, 128):
        for side, batch in ((8, 1), (16, 4), (32, 8)):
            x, weight = maker.randn(batch, channels, side, side), maker.randn(channels, 1, 3, 3)
            yield Probe(partial(convolve, x, weight, padding=1, groups=channels))
            gradients = partial(_convolve_back, x.requires_grad_(), weight.requires_grad_(), 1, channels)
            yield Probe(gradients, "depthwise_backward")
    for channels, side in ((16, 8), (64, 16), (64, 32)):
        x, weight = maker.randn(1, channels, side, side), maker.randn(channels, channels, 2, 2)
        yield Probe(partial(torch.nn.functional.conv_transpose2d, x, weight, stride=2))


def _convolve_back(x: torch.Tensor, weight: torch.Tensor, padding: int, groups: int) -> object:
    function = partial(torch.nn.functional.conv2d, padding=padding, groups=groups)
    return _backward(function, [x, weight])


def _recurrent(maker: Maker) -> Iterator[Probe]:
    if maker.device.type != "cpu":
        return
    for steps in (8, 32):
        for width, batch in ((32, 1), (64, 8), (256, 16)):
            layer, x = nn.LSTM(width, width), maker.randn(steps, batch, width)
            yield Probe(partial(_without_gradient, layer, x), "recurrent")
            yield Probe(partial(_recur_back, layer, x), "recurrent_backward")


def _without_gradient(layer: nn.Module, x: torch.Tensor) -> object:
    with torch.no_grad():
        return layer(x)


def _recur_back(layer: nn.Module, x: torch.Tensor) -> object:
    with torch.enable_grad():
        result = layer(x)[0]
        return torch.autograd.grad(result, list(layer.parameters()), torch.ones_like(result))


# -- element by element --------------------------------------------------------------------------------------


def _pointwise(maker: Maker) -> Iterator[Probe]:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for size in maker.sizes(few=dtype is not torch.float32):
            one, other = maker.randn(size, dtype=dtype), maker.randn(size, dtype=dtype)
            yield Probe(partial(aten.add.Tensor, one, other))
            if dtype is torch.float32:
                yield Probe(partial(aten.sqrt.default, one.abs()))
                yield Probe(partial(aten.add_.Tensor, one, other))
                yield Probe(partial(aten.gt.Scalar, one, 0))
                yield Probe(partial(aten.where.self, one > 0, one, other))
                yield Probe(partial(aten.mse_loss.default, one, other))


TRANSCENDENTAL: tuple[Callable[..., object], ...] = (
    aten.exp.default,
    aten.tanh.default,
    aten.erf.default,
    aten.gelu.default,
    aten.sin.default,
)


def _transcendental(maker: Maker) -> Iterator[Probe]:
    for dtype in (torch.float32, torch.bfloat16):
        for size in maker.sizes(few=True):
            x = maker.randn(size, dtype=dtype)
            for function in TRANSCENDENTAL if dtype is torch.float32 else TRANSCENDENTAL[:4:3]:
                yield Probe(partial(function, x))
            if dtype is torch.float32:
                yield Probe(partial(aten.gelu_backward.default, x, x))
                yield Probe(partial(aten.pow.Tensor_Scalar, x, 3))


def _copies(maker: Maker) -> Iterator[Probe]:
    for size in maker.sizes():
        x = maker.randn(size)
        yield Probe(partial(aten.clone.default, x))
        yield Probe(partial(aten.zeros_like.default, x))
    for size in maker.sizes(few=True):
        x = maker.randn(size)
        yield Probe(partial(aten._to_copy.default, x, dtype=torch.bfloat16))
        yield Probe(partial(aten.empty_like.default, x))
        side = int(size**0.5)
        square = maker.randn(side, side)
        yield Probe(partial(aten.clone.default, square.t(), memory_format=torch.contiguous_format))
        yield Probe(partial(aten.constant_pad_nd.default, square, [0, 1]))
        for parts in (2, 8):
            pieces = [maker.randn(max(1, size // parts)) for _ in range(parts)]
            yield Probe(partial(aten.cat.default, pieces))
            rows = [maker.randn(2, max(1, size // parts // 64), 32).transpose(1, 2) for _ in range(parts)]
            yield Probe(partial(aten.cat.default, rows, 1))


def _random(maker: Maker) -> Iterator[Probe]:
    for size in (64, 16384, 2**18):
        x = maker.randn(size)
        yield Probe(partial(aten.bernoulli.p, x, 0.9))
        yield Probe(partial(aten.native_dropout.default, x, 0.1, True))
        yield Probe(partial(aten.uniform.default, x))
        yield Probe(partial(aten.normal_functional.default, x))
        yield Probe(partial(aten.randperm.default, size, device=maker.device))


# -- along a dimension ---------------------------------------------------------------------------------------


def _reductions(maker: Maker) -> Iterator[Probe]:
    for rows, width in ((8, 8), (64, 64), (256, 256), (1024, 1024)):
        x = maker.randn(rows, width)
        for dims in ([1], [0]):
            yield Probe(partial(aten.sum.dim_IntList, x, dims))
            yield Probe(partial(aten.mean.dim, x, dims))
            yield Probe(partial(aten.var.correction, x, dims))
            yield Probe(partial(aten.argmax.default, x, dims[0]))
        yield Probe(partial(aten.cumsum.default, x, 1))


def _normalisations(maker: Maker) -> Iterator[Probe]:
    for width in (8, 64, 512):
        for elements in (width * 4, 2**14, 2**18):
            x = maker.randn(elements // width, width)
            weight = maker.randn(width)
            yield Probe(partial(aten._softmax.default, x, 1, False))
            yield Probe(partial(aten._softmax_backward_data.default, x, x, 1, torch.float32))
            yield Probe(partial(aten.native_layer_norm.default, x, [width], weight, weight, 1e-5))
            means = maker.randn(elements // width, 1)
            back = partial(
                aten.native_layer_norm_backward.default, x, x, [width], means, means, weight, weight
            )
            yield Probe(partial(back, [True, True, True]))
    for channels, side in ((16, 4), (16, 32), (64, 4), (64, 32), (64, 64)):
        x, weight = maker.randn(2, channels, side, side), maker.randn(channels)
        spread = weight.abs()
        yield Probe(
            partial(aten.native_batch_norm.default, x, weight, weight, weight, spread, True, 0.1, 1e-5)
        )
        inference = aten._native_batch_norm_legit_no_training.default
        yield Probe(partial(inference, x, weight, weight, weight, spread, 0.1, 1e-5))
        batch_back = aten.native_batch_norm_backward.default
        mask = [True, True, True]
        yield Probe(partial(batch_back, x, x, weight, weight, spread, weight, weight, True, 1e-5, mask))
        grouped = (2, channels, side * side, 8)
        yield Probe(partial(aten.native_group_norm.default, x, weight, weight, *grouped, 1e-5))
        means = maker.randn(2, 8)
        yield Probe(
            partial(aten.native_group_norm_backward.default, x, x, means, means, weight, *grouped, mask)
        )


# -- by index ------------------------------------------------------------------------------------------------


def _indexing(maker: Maker) -> Iterator[Probe]:
    for count, width in ((8, 32), (256, 32), (256, 256), (2048, 256)):
        table, indices = maker.randn(4096, width), maker.integers(4096, count)
        rows = maker.randn(count, width)
        yield Probe(partial(aten.embedding.default, table, indices))
        yield Probe(partial(aten.index_put.default, table[:count], [indices % count], rows, True))
        yield Probe(partial(aten.scatter_add.default, rows, 0, maker.integers(count, count, width), rows))
    back = aten.embedding_dense_backward.default
    for vocabulary, width in ((64, 16), (1024, 64), (8192, 256)):
        for count in (1, 64, 1024):
            gradient, indices = maker.randn(count, width), maker.integers(vocabulary, count)
            yield Probe(partial(back, gradient, indices, vocabulary, -1, False))


def _selections(maker: Maker) -> Iterator[Probe]:
    for width in (64, 4096):
        for rows in (1, 64):
            x = maker.randn(rows, width)
            yield Probe(partial(aten.sort.default, x))
            yield Probe(partial(aten.topk.default, x, 8))
    for size in (64, 65536):
        edges = maker.randn(64).sort().values
        yield Probe(partial(aten.bucketize.Tensor, maker.randn(size), edges))


# -- vision, losses, the rest --------------------------------------------------------------------------------


def _pooling(maker: Maker) -> Iterator[Probe]:
    for channels, side in ((8, 8), (32, 16), (64, 64)):
        x = maker.randn(1, channels, side, side)
        half = maker.randn(1, channels, side // 2, side // 2)
        places = maker.integers(side * side, 1, channels, side // 2, side // 2)
        yield Probe(partial(aten.max_pool2d_with_indices.default, x, [2, 2], [2, 2]))
        back = aten.max_pool2d_with_indices_backward.default
        yield Probe(partial(back, half, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places))
        yield Probe(partial(aten.avg_pool2d.default, x, [2, 2], [2, 2]))
        pool_back = aten.avg_pool2d_backward.default
        yield Probe(partial(pool_back, half, x, [2, 2], [2, 2], [0, 0], False, True, None))
        yield Probe(partial(aten.upsample_nearest2d.default, half, [side, side]))
        yield Probe(partial(aten.upsample_nearest2d_backward.default, x, [side] * 2, list(half.shape)))


def _losses(maker: Maker) -> Iterator[Probe]:
    for rows, width in ((8, 16), (256, 64), (512, 1024)):
        x, labels = maker.randn(rows, width), maker.integers(width, rows)
        yield Probe(partial(aten.nll_loss_forward.default, x, labels, None, 1, -100))
        total = torch.tensor(float(rows), device=maker.device)
        back = aten.nll_loss_backward.default
        yield Probe(partial(back, total, x, labels, None, 1, -100, total))


def _fused(maker: Maker) -> Iterator[Probe]:
    for size in (64, 65536, 2**20):
        x, step = maker.randn(size), torch.ones((), device=maker.device)
        settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
        update = partial(aten._fused_adam_.default, [x], [x.clone()], [x.clone()], [x.abs()], [], [step])
        yield Probe(partial(update, **settings, amsgrad=False, maximize=False))


def _mathematics(maker: Maker) -> Iterator[Probe]:
    for side in (8, 64, 256):
        x = maker.randn(side, side)
        yield Probe(
            partial(aten.linalg_cholesky_ex.default, x @ x.t() + side * torch.eye(side, device=x.device))
        )
        yield Probe(partial(aten._fft_r2c.default, x, [1], 0, True))


_TABLE: tuple[Make, ...] = (
    _pointwise,
    _copies,
    _matmuls,
    _batched,
    _attention,
    _convolutions,
    _recurrent,
    _transcendental,
    _random,
    _reductions,
    _normalisations,
    _indexing,
    _selections,
    _pooling,
    _losses,
    _fused,
    _mathematics,
)
