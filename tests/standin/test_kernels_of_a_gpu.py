"""Pools whose devices are all accelerators have cells recorded for a GPU's kernels, with the CPU's values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from real_pool import PoolUnderTest
from torch import Tensor, nn

from djinn_lab.capture.recorders import CHOICE
from djinn_lab.client.session import Session

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=["native", "python"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, request.param)
        with PoolUnderTest(tmp_path_factory.mktemp("pool"), "standin:1") as pool, pool.session() as session:
            yield session


def _run(layer: nn.RNNBase, source: Tensor) -> list[Tensor]:
    """Return what a layer gives and all gradients of it."""
    output, last = layer(source)
    states = last if isinstance(last, tuple) else (last,)
    torch.stack([output.square().sum(), *(state.sum() for state in states)]).sum().backward()
    gradients = [source.grad, *(parameter.grad for parameter in layer.parameters())]
    return [
        output.detach(),
        *(state.detach() for state in states),
        *(one for one in gradients if one is not None),
    ]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.GRU, {}),
        (nn.GRU, {"bidirectional": True, "num_layers": 2}),
        (nn.GRU, {"bias": False, "batch_first": True}),
        (nn.GRU, {"dtype": torch.bfloat16}),
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu", "num_layers": 3}),
        (nn.LSTM, {}),
        (nn.LSTM, {"dtype": torch.float64}),
        (nn.LSTM, {"dtype": torch.bfloat16, "num_layers": 2}),
    ],
)
def test_recurrent_layers_and_their_gradients_are_those_of_plain_torch(
    session: Session, kind: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    layer, dtype = kind(4, 5, **options), options.get("dtype", torch.float32)
    source = torch.randn(7, 3, 4, dtype=dtype)
    expected = _run(layer, source.clone().requires_grad_())
    layer.zero_grad()
    with session.capture():
        found = _run(layer.cuda(), source.clone().cuda().requires_grad_())
    near = {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(session.fetch(one), other, **near)


def test_a_recurrent_layer_under_autocast_computes_in_its_dtype(session: Session) -> None:
    layer = nn.GRU(4, 5)
    with session.capture():
        source = torch.randn(7, 3, 4).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            output, _ = layer.cuda()(source)
        output.float().sum().backward()
    weight = layer.weight_ih_l0
    assert output.dtype is torch.bfloat16
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32
    assert session.fetch(weight.grad).abs().sum() > 0


def test_packed_sequences_are_recorded_step_by_step(session: Session) -> None:
    layer, rows = nn.LSTM(4, 5), torch.randn(3, 7, 4)
    expected, _ = nn.utils.rnn.pad_packed_sequence(
        layer(nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([7, 4, 2]), batch_first=True))[0]
    )
    with session.capture():
        packed = nn.utils.rnn.pack_padded_sequence(rows.cuda(), torch.tensor([7, 4, 2]), batch_first=True)
        found, _ = nn.utils.rnn.pad_packed_sequence(layer.cuda()(packed)[0])
    torch.testing.assert_close(session.fetch(found.detach()), expected.detach())


def test_second_derivatives_of_a_recurrent_layer_need_cudnn_to_be_off(session: Session) -> None:
    layer, source = nn.GRU(4, 5), torch.randn(7, 3, 4, requires_grad=True)

    def penalty() -> Tensor:
        (gradient,) = torch.autograd.grad(layer(source)[0].sum(), source, create_graph=True)
        return gradient.square().sum()

    (expected,) = torch.autograd.grad(penalty(), layer.weight_hh_l0)
    with session.capture():
        with pytest.raises(NotImplementedError, match=r"torch\.backends\.cudnn\.flags\(enabled=False\)"):
            torch.autograd.grad(penalty(), layer.weight_hh_l0)
        with torch.backends.cudnn.flags(enabled=False):
            (found,) = torch.autograd.grad(penalty(), layer.weight_hh_l0)
    torch.testing.assert_close(session.fetch(found), expected)


def test_shapes_that_do_not_fit_are_refused_as_eager_does(session: Session) -> None:
    layer = nn.GRU(4, 5)
    flat = [parameter.detach() for parameter in layer.parameters()]
    with session.capture(), pytest.raises(RuntimeError):
        torch._VF.gru(torch.randn(7, 3, 9), torch.zeros(1, 3, 5), flat, True, 1, 0.0, False, False, False)


def test_what_a_gpu_has_one_kernel_for_is_few_ops(session: Session) -> None:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(100)]
    optimizer, layer = torch.optim.AdamW(parameters), nn.GRU(4, 5)
    with session.capture():
        values, source = torch.ones(8, 8).cuda(), torch.randn(128, 3, 4).cuda()
        layer.cuda()
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        optimizer.step()

    def ops(act: Any) -> int:
        with session.capture() as cell:
            act()
        return cell.report.ops_run

    assert ops(optimizer.step) <= 12
    assert ops(lambda: nn.functional.dropout(values, 0.1)) == 1
    assert ops(lambda: layer(source)) <= 4


def test_what_ops_make_is_on_the_device_also_where_they_are_not_told(session: Session) -> None:
    """Called as ops torch leaves their device open, and means the CPU."""
    aten = torch.ops.aten
    with session.capture():
        weights = torch.ones(5).cuda()
        made = [
            aten.zeros.default([5]),
            aten.arange.default(5),
            aten.linspace.Tensor_Tensor(weights[0], weights.sum(), 5),
            aten.hann_window.default(5),
            torch.full((5,), 2.0),
            torch.eye(5)[1],
        ]
        found = [(weights * one).sum() for one in made]
    values = [session.fetch(one).item() for one in found]
    assert values == pytest.approx([0.0, 10.0, 15.0, torch.hann_window(5).sum().item(), 10.0, 1.0])


def test_an_op_without_a_kernel_is_refused_by_the_device_and_says_what_to_do(session: Session) -> None:
    """A GPU has one for products whose sums are more precise than their factors; a CPU has not."""
    with session.capture():
        factors = torch.ones(3, 3, dtype=torch.bfloat16).cuda()
        kept = factors + 1
    with (
        pytest.raises(
            NotImplementedError, match=r"has no kernel for this op: .* --target kind=cpu, or in the"
        ),
        session.capture(),
    ):
        torch.mm(factors, factors, out_dtype=torch.float32).sum().item()
    assert session.fetch(kept).sum() == 18
