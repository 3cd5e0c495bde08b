"""Graphs of the stand-in, in torch's general form of them: recorded once, replayed late and in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import standin
import torch
from isolated import on_standin

MIB = 2**20
DEVICE = "standin:0"
MANUAL = {"memory_bytes": 256 * MIB, "context_bytes": 16 * MIB, "manual": True}


def recorded(run: Callable[[], torch.Tensor]) -> tuple[torch.accelerator.Graph, torch.Tensor]:
    graph = torch.accelerator.Graph(capture_error_mode="thread_local")
    with torch.Stream(DEVICE), graph:
        made = run()
    return graph, made


@on_standin(**MANUAL)
def test_recording_computes_nothing_and_a_replay_reads_what_is_there_then() -> None:
    given, total = torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE)
    graph, made = recorded(lambda: torch.tanh(given * 2) + total.add_(given))
    assert torch.equal(total.cpu(), torch.zeros(4))
    for number in (1.0, 3.0):
        given.fill_(number)
        graph.replay()
    assert torch.equal(total.cpu(), torch.full((4,), 4.0))
    assert torch.equal(made.cpu(), torch.tanh(torch.full((4,), 6.0)) + 4)
    assert not standin.races()


@on_standin(**MANUAL)
def test_replay_is_one_launch_that_returns_before_it_has_ended() -> None:
    given = torch.ones(4, device=DEVICE)

    def chain() -> torch.Tensor:
        value = given
        for _ in range(50):
            value = value + 1
        return value

    graph, made = recorded(chain)
    torch.accelerator.synchronize()
    before = standin.counters()["launches"]
    graph.replay()
    ended = torch.Event(DEVICE)
    ended.record()
    assert not ended.query()
    assert standin.counters()["launches"] == before + 1
    assert torch.equal(made.cpu(), torch.full((4,), 51.0))


@on_standin(**MANUAL)
def test_reading_a_number_ends_the_recording() -> None:
    given = torch.ones(4, device=DEVICE)
    graph = torch.accelerator.Graph()
    with torch.Stream(DEVICE):
        graph.capture_begin()
        with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"):
            given.sum().item()
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            graph.capture_end()
    assert given.sum().item() == 4


@on_standin(**MANUAL)
def test_default_stream_is_not_recorded() -> None:
    torch.ones(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.accelerator.Graph().capture_begin()


@on_standin(**MANUAL)
def test_memory_of_a_graph_is_its_own_until_it_is_gone() -> None:
    given = torch.ones(MIB, device=DEVICE)
    standin.empty_cache()
    before = standin.memory_reserved(0)
    graph, made = recorded(lambda: (given + 1) * 2)
    kept = standin.memory_reserved(0)
    assert kept >= before + made.nbytes
    del made
    standin.empty_cache()
    assert standin.memory_reserved(0) == kept
    graph.replay()
    assert not standin.races()
    del graph
    standin.empty_cache()
    assert standin.memory_reserved(0) == before


@on_standin(**MANUAL)
def test_graphs_of_one_pool_use_what_lies_between_again() -> None:
    given = torch.ones(MIB, device=DEVICE)
    first, one = recorded(lambda: (given + 1) * 2)
    reserved = standin.memory_reserved(0)
    second = torch.accelerator.Graph(pool=first.pool())
    with torch.Stream(DEVICE), second:
        other = (given + 3).sum()
    assert standin.memory_reserved(0) <= reserved + 2 * MIB
    for graph in (first, second):
        graph.replay()
    assert one[0].item() == 4
    assert other.item() == 4 * MIB


@on_standin(**MANUAL)
def test_replay_on_freed_memory_is_reported() -> None:
    held = [torch.ones(4 * MIB, device=DEVICE)]
    graph, _ = recorded(lambda: held[0] + 1)
    held.clear()
    graph.replay()
    assert standin.races() == ["a graph was started whose memory has been freed"]


@on_standin(**MANUAL)
def test_index_out_of_range_in_a_replay_is_a_late_fault() -> None:
    table, places = torch.zeros(4, 2, device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)
    graph, _ = recorded(lambda: table.index_copy_(0, places, torch.ones(1, 2, device=DEVICE)))
    places.fill_(9)
    graph.replay()
    with pytest.raises(torch.AcceleratorError, match=r"device-side assert triggered \(aten::index_copy_"):
        torch.accelerator.synchronize()
