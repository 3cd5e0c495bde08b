"""What a user does with torch, in a few lines each: a program returns what its user would look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

Program = Callable[[], Sequence[torch.Tensor]]
SEED = 11


def training() -> Sequence[torch.Tensor]:
    """Train a small network of convolutions with dropout by Adam; return losses and weights."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    images, labels = torch.randn(16, 1, 8, 8), torch.randint(5, (16,))
    losses = []
    for _ in range(20):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(one.detach() for one in model.parameters())]


def generate() -> Sequence[torch.Tensor]:
    """Write with a tiny GPT-2 of random weights, by the likeliest token and by drawn ones."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model, prompt = transformers.GPT2LMHeadModel(config).eval(), torch.arange(2, 8)[None]
    likely = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
    drawn = model.generate(prompt, max_new_tokens=12, do_sample=True, top_k=8, pad_token_id=0)
    assert isinstance(likely, torch.Tensor)
    assert isinstance(drawn, torch.Tensor)
    return [likely, drawn]


def recurrent() -> Sequence[torch.Tensor]:
    """Run an LSTM and attention, forth and back."""
    lstm, attention = nn.LSTM(6, 8, 2, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
    series = torch.randn(3, 5, 6)
    hidden, _ = lstm(series)
    found, weights = attention(hidden, hidden, hidden)
    found.pow(2).sum().backward()
    gradients = [one.grad for one in (*lstm.parameters(), *attention.parameters())]
    return [found.detach(), weights.detach(), *(one for one in gradients if one is not None)]


def traced() -> Sequence[torch.Tensor]:
    """Trace a function by ``make_fx``, and call what that returns."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + x.to(torch.float64)).sum()

    found: torch.Tensor = make_fx(function)(torch.randn(3))(torch.ones(3))
    return [found]


def solved() -> Sequence[torch.Tensor]:
    """Solve by an LDL factorisation, whose pivots shape inference must not make up."""
    made = torch.randn(6, 6)
    factors, pivots, _ = torch.linalg.ldl_factor_ex(made @ made.mT + torch.eye(6))
    return [torch.linalg.ldl_solve(factors, pivots, torch.randn(6, 2))]


def distances() -> Sequence[torch.Tensor]:
    """Differentiate distances, whose ops have had other names for their arguments."""
    points, others = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3)
    found = torch.cdist(points, others)
    (found.sum() + F.pdist(points).sum()).backward()
    assert points.grad is not None
    return [found.detach(), points.grad]


PROGRAMS: dict[str, Program] = {
    "training": training,
    "generate": generate,
    "recurrent": recurrent,
    "make_fx": traced,
    "ldl_solve": solved,
    "distances": distances,
}
