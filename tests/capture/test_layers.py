"""torch.nn with parameters made outside the cell: forward and backward as without capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from equality import check_cell
from torch import nn
from torch.nn import functional as F

from djinn_lab.capture.recorders import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning"),
]


def _step(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


class GroupedQueries(nn.Module):
    """Attention whose heads share keys and values in groups."""

    def __init__(self, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.query, self.both = nn.Linear(8, 8), nn.Linear(8, 16 * groups // heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[:2]
        query = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        key, value = self.both(x).view(batch, length, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


LAYERS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "RNN": lambda: (nn.RNN(4, 6, 2), (torch.randn(5, 2, 4),)),
    "LSTM": lambda: (nn.LSTM(4, 6, 2, dropout=0.3), (torch.randn(5, 2, 4),)),
    "bidirectional LSTM": lambda: (
        nn.LSTM(4, 6, bidirectional=True, batch_first=True),
        (torch.randn(2, 5, 4),),
    ),
    "LSTM with projections": lambda: (nn.LSTM(4, 6, proj_size=3), (torch.randn(5, 2, 4),)),
    "LSTMCell": lambda: (nn.LSTMCell(4, 6), (torch.randn(2, 4),)),
    "GRU": lambda: (nn.GRU(4, 6, 2), (torch.randn(5, 2, 4),)),
    "GRUCell": lambda: (nn.GRUCell(4, 6), (torch.randn(2, 4),)),
    "Transformer": lambda: (nn.Transformer(8, 2, 1, 1, 16), (torch.randn(5, 2, 8), torch.randn(3, 2, 8))),
    "TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        (torch.randn(2, 5, 8),),
    ),
    "MultiheadAttention": lambda: (nn.MultiheadAttention(8, 2), tuple(torch.randn(3, 5, 2, 8))),
    "grouped-query attention": lambda: (GroupedQueries(4, 2), (torch.randn(2, 5, 8),)),
    "multi-query attention": lambda: (GroupedQueries(4, 1), (torch.randn(2, 5, 8),)),
    "Conv and BatchNorm": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2)
        ),
        (torch.randn(2, 3, 8, 8),),
    ),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(10, 4), (torch.randint(0, 10, (3, 5)),)),
    "Bilinear": lambda: (nn.Bilinear(3, 4, 2), (torch.randn(5, 3), torch.randn(5, 4))),
    "GroupNorm and InstanceNorm": lambda: (
        nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
        (torch.randn(2, 4, 6),),
    ),
    "weight_norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)),
    "spectral_norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)),
    "orthogonal": lambda: (nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), (torch.randn(2, 4),)),
    "old spectral_norm": lambda: (nn.utils.spectral_norm(nn.Linear(4, 3)), (torch.randn(2, 4),)),
    "LazyLinear": lambda: (nn.Sequential(nn.LazyLinear(3)), (torch.randn(2, 4),)),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_forward_and_backward(name: str, mode: str, recorder: Recorder) -> None:
    layer, inputs = LAYERS[name]()
    layer.train(mode == "train")

    def run(layer: nn.Module, *inputs: torch.Tensor) -> Any:
        returned = layer(*inputs)
        first = returned if isinstance(returned, torch.Tensor) else returned[0]
        _step(first.square().mean())
        return returned

    check_cell(recorder, run, layer, *inputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reduce", [torch.Tensor.sum, torch.Tensor.mean])
def test_attention_takes_an_expanded_gradient(
    reduce: Callable[[torch.Tensor], torch.Tensor], causal: bool, recorder: Recorder
) -> None:
    def run(*inputs: torch.Tensor) -> Any:
        _step(reduce(F.scaled_dot_product_attention(*inputs, is_causal=causal)))
        return [one.grad for one in inputs]

    check_cell(recorder, run, *(torch.randn(1, 2, 33, 16, requires_grad=True) for _ in range(3)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("masked", [False, True])
def test_transformer_layers_take_their_fast_path(masked: bool, recorder: Recorder) -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool() if masked else None

    def run(layer: nn.Module, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return layer(x, src_key_padding_mask=mask)

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    check_cell(recorder, run, layer.eval(), torch.randn(2, 5, 8))
    check_cell(recorder, run, nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8))


def test_recurrent_layers_without_gradients(recorder: Recorder) -> None:
    def run(layer: nn.Module, x: torch.Tensor) -> Any:
        with torch.no_grad():
            outputs = layer(x)
        return outputs, layer(x)

    check_cell(recorder, run, nn.LSTM(28, 64, 2, batch_first=True), torch.randn(20, 28, 28))
    check_cell(recorder, run, nn.LSTM(28, 64, 2).eval(), torch.randn(20, 28, 28))


def test_packed_sequences(recorder: Recorder) -> None:
    def run(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3], batch_first=True)
        returned, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
        return _step(returned.sum())

    check_cell(recorder, run, nn.LSTM(4, 6, batch_first=True), torch.randn(2, 5, 4))
    check_cell(recorder, run, nn.GRU(4, 6, batch_first=True), torch.randn(2, 5, 4))


def test_tied_weights_stay_tied(recorder: Recorder) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(x))

    network = Tied()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        loss = _step(F.cross_entropy(network(torch.arange(6)), torch.arange(6)))
        optimizer.step()
        return loss

    check_cell(recorder, step, network, optimizer)
    assert network.head.weight is network.embedding.weight
