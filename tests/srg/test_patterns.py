"""Patterns in the graphs of small networks: found by what ops compute, whatever modules are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_recording import Recording

from djinn_lab.srg.graph import SRG
from djinn_lab.srg.patterns import KINDS, Pattern, find_patterns


def graph(run: Callable[[], object], recording: Recording | None = None) -> SRG:
    recording = recording or Recording()
    with recording, torch.no_grad():
        kept = run()
    assert kept is not None
    return SRG.from_program(recording.program())


def kinds(run: Callable[[], object]) -> Counter[str]:
    return Counter(pattern.kind for pattern in find_patterns(graph(run)))


def only(found: Counter[str], *names: str) -> dict[str, int]:
    return {name: found[name] for name in names}


class RootMeanSquare(nn.Module):
    """An RMS norm written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("activation", [F.relu, F.gelu, F.silu, torch.tanh])
def test_two_products_around_an_activation_are_an_mlp(
    activation: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    up, down, x = nn.Linear(8, 32), nn.Linear(32, 8), torch.randn(4, 8)
    assert only(kinds(lambda: down(activation(up(x)))), "mlp", "gated mlp") == {"mlp": 1, "gated mlp": 0}


def test_two_products_without_an_activation_are_none() -> None:
    up, down, x = nn.Linear(8, 32), nn.Linear(32, 8), torch.randn(4, 8)
    assert kinds(lambda: down(up(x)))["mlp"] == 0


@pytest.mark.parametrize("packed", [False, True])
def test_an_activation_times_another_product_is_a_gated_mlp(packed: bool) -> None:
    gate, up, both = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(8, 32)
    down, x = nn.Linear(16, 8), torch.randn(4, 8)

    def run() -> torch.Tensor:
        if packed:
            first, second = both(x).chunk(2, -1)
            return down(F.silu(first) * second)
        return down(F.silu(gate(x)) * up(x))

    assert only(kinds(run), "mlp", "gated mlp") == {"mlp": 0, "gated mlp": 1}


@pytest.mark.parametrize("fused", [False, True])
def test_attention_has_its_products_and_softmax(fused: bool) -> None:
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))

    def run() -> torch.Tensor:
        if fused:
            return F.scaled_dot_product_attention(q, k, v)
        return torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v

    srg = graph(run)
    found = [pattern for pattern in find_patterns(srg) if pattern.kind == "attention"]
    assert len(found) == 1
    assert len(found[0].nodes) == (1 if fused else 3)


def test_norms_are_found_as_one_op_and_written_out() -> None:
    written, x = RootMeanSquare(8), torch.randn(4, 8)
    assert kinds(lambda: F.layer_norm(x, (8,)))["normalisation"] == 1
    assert kinds(lambda: written(x))["normalisation"] == 1
    assert kinds(lambda: x * torch.rsqrt(x.abs()))["normalisation"] == 0


def test_a_convolution_takes_its_norm_and_activation_along() -> None:
    convolution, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval()
    srg = graph(lambda: F.relu(norm(convolution(torch.randn(1, 3, 8, 8)))))
    [found] = [pattern for pattern in find_patterns(srg) if pattern.kind == "convolution block"]
    assert [srg.nodes[node].op.split(".")[1] for node in found.nodes][0::2] == ["convolution", "relu"]
    assert len(found.nodes) == 3


def test_a_residual_joins_a_value_with_what_was_made_from_it() -> None:
    layer, other, x, y = nn.Linear(8, 8), nn.Linear(8, 8), torch.randn(4, 8), torch.randn(4, 8)
    assert kinds(lambda: x + torch.relu(layer(x)))["residual"] == 1
    assert kinds(lambda: y + other(layer(x)))["residual"] == 0
    assert kinds(lambda: x + torch.relu(x))["residual"] == 0


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_scores_every_row_of_the_embedding(tied: bool) -> None:
    table, head, hidden = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False), nn.Linear(8, 8)
    if tied:
        head.weight = table.weight
    ids = torch.randint(0, 50, (2, 3))
    found = kinds(lambda: head(torch.tanh(hidden(table(ids)))))
    assert only(found, "embedding", "lm head") == {"embedding": 1, "lm head": 1}


def test_a_cache_that_grows_is_a_kv_append() -> None:
    past, new, q = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4)

    def run() -> torch.Tensor:
        keys = torch.cat([past, new], 2)
        return F.scaled_dot_product_attention(q, keys, keys)

    assert kinds(run)["kv append"] == 1


def test_an_optimizer_s_updates_are_one_step() -> None:
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
    layer(torch.randn(2, 4)).sum().backward()
    recording = Recording("optimizer")
    assert [one.kind for one in find_patterns(graph(lambda: optimizer.step() or 1, recording))] == [
        "optimizer step"
    ]


def test_text_and_image_meet_in_a_fusion() -> None:
    table, convolution = nn.Embedding(20, 4), nn.Conv2d(3, 4, 8)
    ids, image = torch.randint(0, 20, (1, 1)), torch.randn(1, 3, 8, 8)
    assert (
        kinds(lambda: torch.cat([table(ids)[:, 0], convolution(image).flatten(1)], 1))["modality fusion"] == 1
    )


def test_patterns_name_nodes_of_the_graph_in_program_order() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    srg = graph(lambda: block(torch.randn(2, 3, 8)))
    found = find_patterns(srg)
    assert {pattern.kind for pattern in found} <= set(KINDS)
    assert found == tuple(sorted(found, key=lambda one: (one.nodes, one.kind)))
    for pattern in found:
        assert pattern.nodes == tuple(sorted(set(pattern.nodes)))
        assert set(pattern.nodes) <= set(range(len(srg.nodes)))


def test_the_empty_graph_has_none() -> None:
    assert find_patterns(SRG.from_program(Recording().program())) == ()


def test_a_pattern_sorts_and_counts_each_node_once() -> None:
    assert Pattern.of("mlp", [3, 1, 3]).nodes == (1, 3)
