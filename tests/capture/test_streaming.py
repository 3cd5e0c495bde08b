"""Long cells are sent in parts while they are still being recorded, with equal results."""

from __future__ import annotations

import pytest
import torch
from in_process import InProcessBackend, cell

from djinn_lab.capture.recorders import Recorder, chosen, make_recorder
from djinn_lab.capture.sending.pacing import STREAM_NODES, STREAM_NODES_MIN, PartLength
from djinn_lab.errors import RemoteError, ValueLost
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import Program
from djinn_lab.srg.validation import validate_program


def _walk(steps: int) -> list[torch.Tensor]:
    """Draws, in-place writes, views and a seed set on the way."""
    x = torch.zeros(4, 4)
    row = x[1]
    seen = []
    for step in range(steps):
        x += torch.randn(4, 4)
        row.mul_(0.5)
        if step % 97 == 0:
            seen.append(x.clone())
        if step == steps // 2:
            torch.manual_seed(step)
        if step == steps // 3:
            seen.append(torch.rand(2, generator=torch.Generator().manual_seed(1)))
    return [*seen, x, row, torch.rand(3)]


def test_a_streamed_cell_equals_eager_bit_for_bit(recorder: Recorder, backend: InProcessBackend) -> None:
    steps = STREAM_NODES
    torch.manual_seed(4)
    expected = [*_walk(steps), torch.rand(2)]
    torch.manual_seed(4)
    with cell(recorder):
        captured = _walk(steps)
    found = [*captured, torch.rand(2)]
    assert [cut.cause for cut in backend.cuts].count("streamed") >= 2
    assert all(torch.equal(got.cpu(), want) for got, want in zip(found, expected, strict=True))


def test_reading_in_a_streamed_cell(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.zeros(1)
        sums = []
        for step in range(3 * STREAM_NODES):
            x = x + 1
            if step % 700 == 699:
                sums.append(x.item())
    assert sums == [float(n) for n in range(700, 3 * STREAM_NODES + 1, 700)]


def test_an_error_in_a_streamed_part_is_raised_and_what_built_on_it_is_lost(recorder: Recorder) -> None:
    with cell(recorder):
        kept = torch.ones(3) * 2
    with pytest.raises(RemoteError, match="out of bounds"), cell(recorder):
        made = kept + 1
        bad = kept[torch.tensor([5])]
        later = bad
        for _ in range(3 * STREAM_NODES):
            later = later + 1
    assert kept.tolist() == [2.0, 2.0, 2.0]
    assert made.tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(ValueLost):
        later.tolist()
    with cell(recorder):
        again = kept * 2
    assert again.tolist() == [4.0, 4.0, 4.0]


def test_memory_of_a_streamed_loop_stays_flat(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        x = torch.zeros(1000)
        for _ in range(4 * STREAM_NODES):
            x = x + 1
    assert backend.interpreter.memory.peak_bytes <= 5 * x.nbytes
    assert backend.interpreter.memory.used_bytes == x.nbytes


def test_the_parts_of_a_streamed_cell_merge_into_the_graph_of_the_whole() -> None:
    def record(stream_nodes: int) -> list[Program]:
        backend = InProcessBackend()
        recorder = make_recorder(backend, stream_nodes)
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        with cell(recorder):
            for _ in range(6):
                optimizer.zero_grad()
                network(torch.randn(3, 4)).sum().backward()
                optimizer.step()
        return backend.programs

    whole, parts = record(10_000), record(20)
    assert len(whole) == 1
    assert len(parts) > 3
    merged = merge_programs(parts)
    validate_program(merged)
    one, many = SRG.from_program(whole[0]), SRG.from_program(merged)
    assert _computed(many) == _computed(one)
    if chosen() == "python":  # the native recorder names a view anew in the part that uses it
        assert many.structural_hash == one.structural_hash
        assert len(many.edges) == len(one.edges)


def _computed(graph: SRG) -> list[str]:
    views = ("aten.view.", "aten.t.", "aten.as_strided.", "aten.expand.", "aten.detach.")
    return [node.op for node in graph.nodes if not node.op.startswith(views)]


def test_parts_are_as_long_as_the_pool_is_fast() -> None:
    pace = PartLength(None)
    assert pace.nodes == STREAM_NODES
    pace.learn(200, 200 * 200e-6)
    assert pace.nodes == 256
    pace.learn(200, 200 * 5e-3)
    assert pace.nodes == STREAM_NODES_MIN
    pace.learn(3, 1e-9)  # too few nodes to change the pace
    assert pace.nodes == STREAM_NODES_MIN
    pace.learn(500, 500 * 1e-6)
    assert pace.nodes == STREAM_NODES
    fixed = PartLength(7)
    fixed.learn(200, 1.0)
    assert fixed.nodes == 7
