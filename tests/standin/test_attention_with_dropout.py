"""Attention with dropout is one op on pools of accelerators, and its gradient drops what it dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from real_pool import PoolUnderTest
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from djinn_lab.capture.recorders import CHOICE
from djinn_lab.client.session import Session
from djinn_lab.jobs import Terms

pytestmark = pytest.mark.processes
P = 0.4
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 24, 8


@pytest.fixture(scope="module", params=["native", "python"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, request.param)
        with PoolUnderTest(tmp_path_factory.mktemp("pool"), "standin:2") as pool, pool.session() as session:
            yield session


def _inputs(heads: int = HEADS, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, and values with which the result is the probabilities themselves."""
    torch.manual_seed(5)
    query = torch.randn(BATCH, HEADS, LENGTH, WIDTH, **options)
    key = torch.randn(BATCH, heads, LENGTH, WIDTH, **options)
    return query, key, torch.eye(LENGTH, **options).repeat(BATCH, heads, 1, 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, p: float = P, **options: Any) -> Tensor:
    """As a program does that has torch's function by its module."""
    return nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=p, **options)


def _ops(cell: Any) -> list[str]:
    return [node.op.split(".")[1] for node in cell.graph.nodes]


BOOLS = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(3)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.7},
    "masked": {"attn_mask": BOOLS},
    "masked by head": {"attn_mask": BOOLS.expand(1, HEADS, LENGTH, LENGTH)},
    "biased": {"attn_mask": torch.linspace(-2, 2, LENGTH).expand(BATCH, 1, 1, LENGTH)},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("name", CASES)
def test_some_probabilities_are_dropped_and_the_others_are_those_of_plain_torch(
    session: Session, name: str
) -> None:
    options = CASES[name]
    query, key, value = _inputs(heads=2 if "enable_gqa" in options else HEADS)
    expected = scaled_dot_product_attention(query, key, value, **options)
    with session.capture() as cell:
        made = _attend(query.cuda(), key.cuda(), value.cuda(), **options)
    assert "_scaled_dot_product_efficient_attention" in _ops(cell)
    assert not {"bmm", "_softmax", "_safe_softmax"} & set(_ops(cell))
    found = session.fetch(made)
    kept = found != 0
    torch.testing.assert_close(found[kept], expected[kept] / (1 - P), rtol=1e-4, atol=1e-6)
    possible = expected > 0
    assert abs(kept[possible].float().mean() - (1 - P)) < 0.05


@pytest.mark.parametrize("moved", ["in one cell", "in the next cell", "on another device"])
def test_the_gradient_drops_what_the_forward_pass_dropped(session: Session, moved: str) -> None:
    query, key, value = (one.requires_grad_() for one in _inputs())
    mask = torch.zeros(1, 1, LENGTH, LENGTH).requires_grad_()
    upstream = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
    with session.capture(terms=Terms(target="standin:0")):
        made = _attend(query, key, value, attn_mask=mask)
        if moved == "in one cell":
            made.backward(upstream)
    if moved != "in one cell":
        target = "standin:1" if moved == "on another device" else "standin:0"
        with session.capture(terms=Terms(target=target)):
            torch.rand(3).cuda()
            made.backward(upstream)
    dropped = session.fetch(made.detach())
    factors = (dropped != 0) / (1 - P)
    local = [one.detach().clone().requires_grad_() for one in (query, key, value, mask)]
    scores = local[0] @ local[1].mT / WIDTH**0.5 + local[3]
    (scores.softmax(-1) * factors @ local[2]).backward(upstream)
    for one, other in zip((query, key, value, mask), local, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(session.fetch(one.grad), other.grad, rtol=1e-3, atol=1e-5)


def test_the_same_seed_drops_the_same_and_the_stream_goes_on(session: Session) -> None:
    def draw() -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(11)
        return _attend(query, key, value), torch.rand(4, device="cuda"), _attend(query, key, value)

    with session.capture():
        query, key, value = (one.cuda() for one in _inputs())
        first, again = draw(), draw()
    one, other = [session.fetch(tensor) for tensor in first], [session.fetch(tensor) for tensor in again]
    assert all(map(torch.equal, one, other))
    assert not torch.equal(one[0], one[2])


def test_checkpoints_drop_the_same_when_they_compute_it_again(session: Session) -> None:
    def gradients(again: bool) -> list[Tensor]:
        torch.manual_seed(3)
        inputs = [one.cuda().requires_grad_() for one in _inputs()]
        torch.manual_seed(4)
        made = checkpoint(_attend, *inputs, use_reentrant=False) if again else _attend(*inputs)
        made.square().sum().backward()
        return [one.grad for one in inputs if one.grad is not None]

    with session.capture():
        plain, computed_again = gradients(False), gradients(True)
    assert len(plain) == 3
    for one, other in zip(plain, computed_again, strict=True):
        torch.testing.assert_close(session.fetch(one), session.fetch(other))


def test_autocast_computes_it_in_its_dtype(session: Session) -> None:
    query, key, value = (one.requires_grad_() for one in _inputs())
    with session.capture() as cell:
        with torch.autocast("cuda", torch.bfloat16):
            made = _attend(query, key, value, attn_mask=torch.zeros(LENGTH, LENGTH))
        made.float().sum().backward()
    assert "_scaled_dot_product_efficient_attention" in _ops(cell)
    assert made.dtype is torch.bfloat16
    assert query.grad is not None
    assert query.grad.dtype is torch.float32
    expected = scaled_dot_product_attention(*_inputs())
    found = session.fetch(made.detach()).float()
    kept = found != 0
    torch.testing.assert_close(found[kept], expected[kept] / (1 - P), rtol=5e-2, atol=2e-2)


def test_multihead_attention_trains_with_it(session: Session) -> None:
    layer = nn.MultiheadAttention(16, 4, dropout=P, batch_first=True)
    source = torch.randn(BATCH, LENGTH, 16)
    with session.capture() as cell:
        made, _ = layer.cuda()(source.cuda(), source.cuda(), source.cuda(), need_weights=False)
        made.square().mean().backward()
    assert "_scaled_dot_product_efficient_attention_backward" in _ops(cell)
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert bool(session.fetch(parameter.grad).isfinite().all())


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 6, 8), {}),
        ((2, 2, 6, 8), {"attn_mask": torch.ones(5, 9, dtype=torch.bool)}),
        ((2, 2, 6, 8), {"attn_mask": torch.zeros(6, 6), "is_causal": True}),
    ],
    ids=["three dimensions", "a mask that does not fit", "a mask and causal"],
)
def test_what_no_kernel_takes_is_as_in_plain_torch(
    session: Session, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    inputs = [torch.randn(shape) for _ in range(3)]
    expected: type[Exception] | None = None
    try:
        _attend(*inputs, **options)
    except RuntimeError as error:
        expected = type(error)
    with session.capture():
        given = [one.cuda() for one in inputs]
        if expected is not None:
            with pytest.raises(expected):
                _attend(*given, **options)
        else:
            made = _attend(*given, **options)
    if expected is None:
        assert session.fetch(made).shape == shape
