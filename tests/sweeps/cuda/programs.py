"""Programs that are run eagerly on a GPU and captured for one, without random numbers after their inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

Program = Callable[[], Sequence[torch.Tensor]]


def _training(
    module: nn.Module, inputs: torch.Tensor, dtype: torch.dtype = torch.float32
) -> Callable[[], Program]:
    """Three steps; their losses, and what the weights are then."""

    def prepare() -> Program:
        copied = copy.deepcopy(module)
        return lambda: _trained(copied, inputs, dtype)

    return prepare


def _trained(module: nn.Module, inputs: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    module = module.cuda().to(dtype)
    given = inputs.cuda().to(dtype) if inputs.is_floating_point() else inputs.cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        found = module(given)
        found = found[0] if isinstance(found, tuple) else found
        loss = found.float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(one.detach() for one in module.parameters())]


def _attending(dtype: torch.dtype, causal: bool, mask: bool) -> Callable[[], Program]:
    def prepare() -> Program:
        given, bias = torch.randn(3, 2, 4, 16, 32).to(dtype), torch.randn(16, 16).to(dtype)

        def run() -> Sequence[torch.Tensor]:
            query, key, value = (one.cuda().requires_grad_() for one in given)
            out = F.scaled_dot_product_attention(
                query, key, value, bias.cuda() if mask else None, is_causal=causal
            )
            out.float().pow(2).sum().backward()
            return [out.detach(), *(one.grad for one in (query, key, value) if one.grad is not None)]

        return run

    return prepare


def _dropping(dtype: torch.dtype) -> Callable[[], Program]:
    """Whether the gradient of the values is that of the probabilities which were kept; these are random."""

    def prepare() -> Program:
        query, key, upstream = torch.randn(3, 2, 4, 16, 16).to(dtype)

        def run() -> Sequence[torch.Tensor]:
            value = torch.eye(16, dtype=dtype).repeat(2, 4, 1, 1).cuda().requires_grad_()
            kept = F.scaled_dot_product_attention(query.cuda(), key.cuda(), value, dropout_p=0.3)
            kept.backward(upstream.cuda())
            assert value.grad is not None
            expected = kept.detach().float().mT @ upstream.cuda().float()
            return [((value.grad.float() - expected).abs() < 0.05).float()]

        return run

    return prepare


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 64), nn.LayerNorm(64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.layer(self.embed(tokens))))
        return found


def _small(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Callable[[], Program]:
    def prepare() -> Program:
        inputs = [torch.randn(shape) for shape in shapes]
        return lambda: [function(*(one.cuda() for one in inputs))]

    return prepare


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


def _under_autocast(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return (x @ weight).float()


torch.manual_seed(3)
IMAGES, SERIES, TOKENS = torch.randn(4, 3, 16, 16), torch.randn(7, 4, 12), torch.arange(48).view(4, 12)
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
PROGRAMS: dict[str, Callable[[], Program]] = {
    "matmul": _small(torch.matmul, (300, 200), (200, 100)),
    "softmax": _small(lambda x: x.softmax(-1), (30, 200)),
    "sort": _small(lambda x: x.sort(-1).values, (30, 200)),
    "cumsum": _small(lambda x: x.cumsum(0), (300, 20)),
    "index_put": _small(
        lambda x, y: x.index_put_((torch.tensor([1, 1, 2]).cuda(),), y, True), (9, 5), (3, 5)
    ),
    "scatter_add": _small(lambda x: x.scatter_add(0, (x > 0).long(), x), (90, 50)),
    "embedding bag": _small(
        lambda x: F.embedding_bag(torch.arange(6).cuda(), x, torch.tensor([0, 3]).cuda()), (9, 4)
    ),
    "svd": _small(torch.linalg.svdvals, (20, 20)),
    "fft": _small(lambda x: torch.fft.rfft(x).abs(), (20, 64)),
    "interpolate": _small(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 8, 8)),
    "nonzero": _small(lambda x: (x > 0).nonzero(), (20, 8)),
    "autocast": _small(_under_autocast, (16, 32), (32, 8)),
    "perceptron": _training(
        nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 3)), torch.randn(32, 12)
    ),
    "convolutions": _training(_convolutions(), IMAGES),
    "lstm": _training(nn.LSTM(12, 24, 2, bidirectional=True), SERIES),
    "gru": _training(nn.GRU(12, 24), SERIES),
    "transformer": _training(_Block(), TOKENS),
    **{f"transformer in {name}": _training(_Block(), TOKENS, dtype) for name, dtype in HALF.items()},
    **{f"convolutions in {name}": _training(_convolutions(), IMAGES, dtype) for name, dtype in HALF.items()},
    **{
        f"attention in {dtype}, causal {causal}, mask {mask}": _attending(dtype, causal, mask)
        for dtype in (torch.float32, torch.bfloat16)
        for causal, mask in ((False, False), (True, False), (False, True))
    },
    **{f"attention with dropout in {name}": _dropping(dtype) for name, dtype in HALF.items()},
    "attention with dropout": _dropping(torch.float32),
}
