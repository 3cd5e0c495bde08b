"""Parts of a cell that are sent while the one before them runs: equal results, and nothing half done."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcessBackend, cell

from djinn_lab.capture.recorders import Recorder, make_recorder
from djinn_lab.capture.sending import segment
from djinn_lab.capture.sending.pacing import EARLY_GAIN_S, CutRhythm
from djinn_lab.errors import RemoteError, ValueLost

STEPS = ("add", "view", "draw", "read", "seed", "write plain", "drop", "fail and catch")


def _program(steps: list[str]) -> list[torch.Tensor]:
    """Every step is a few nodes; some need a value, so that the cell is cut."""
    x, plain = torch.zeros(4, 4), torch.ones(4, 4)
    kept: list[torch.Tensor] = []
    for number, step in enumerate(steps):
        match step:
            case "add":
                x = x + number
            case "view":
                x[1].mul_(0.5)
            case "draw":
                x += torch.randn(4, 4)
            case "read":
                kept.append(torch.tensor(float(x.sum())))
            case "seed":
                torch.manual_seed(number)
            case "write plain":
                plain.add_(x)
            case "drop":
                kept = [x.clone()]
            case _:
                x = torch.stack([x, x + 1]).mean(0)
        for _ in range(3):
            x = x * 0.5
    return [x, plain, *kept, torch.rand(2)]


@pytest.mark.hypothesis
@settings(max_examples=40)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=40), st.booleans())
def test_cells_sent_behind_running_parts_equal_eager(steps: list[str], busy: bool) -> None:
    torch.manual_seed(4)
    expected = _program(steps)
    backend = InProcessBackend()
    backend.busy = busy
    torch.manual_seed(4)
    with cell(make_recorder(backend, stream_nodes=8)):
        found = _program(steps)
    assert all(torch.equal(got.cpu(), want) for got, want in zip(found, expected, strict=True))


@pytest.mark.native_recorder(reason="the Python recorder sends nothing behind a running part")
def test_parts_are_sent_behind_a_running_one(backend: InProcessBackend) -> None:
    backend.busy = True
    with cell(make_recorder(backend, stream_nodes=16)):
        x = torch.zeros(3)
        for _ in range(200):
            x = x + 1
    assert x.tolist() == [200.0] * 3
    assert backend.followed >= 5


@pytest.mark.parametrize("busy", [False, True])
def test_a_failing_part_takes_those_behind_it_along(backend: InProcessBackend, busy: bool) -> None:
    recorder = make_recorder(backend, stream_nodes=16)
    with cell(recorder):
        kept = torch.ones(3) * 2
    backend.busy = busy
    with pytest.raises(RemoteError, match="out of bounds"), cell(recorder):
        made = kept + 1
        bad = kept[torch.tensor([5])]
        later = bad
        for _ in range(100):
            later = later + 1
    backend.busy = False
    assert made.tolist() == [3.0] * 3
    with pytest.raises(ValueLost):
        later.tolist()
    with cell(recorder):
        again = kept * 2
    assert again.tolist() == [4.0] * 3


def test_a_cell_resumes_after_a_caught_failure(backend: InProcessBackend) -> None:
    backend.busy = True
    with cell(make_recorder(backend, stream_nodes=16)):
        x = torch.ones(3)
        try:
            y = x[torch.tensor([7])]
            for _ in range(60):
                y = y + 1
            y.tolist()
        except RemoteError:
            y = x
        for _ in range(60):
            y = y + 1
    assert y.tolist() == [61.0] * 3


class TestRhythm:
    def rhythm(self, record_s: float, run_s: float, nodes: int, cuts: int) -> CutRhythm:
        rhythm, now_s = CutRhythm(), 10.0
        rhythm.begin(now_s)
        for _ in range(cuts):
            rhythm.took(nodes)
            rhythm.ran(run_s)
            rhythm.cut(now_s + record_s, now_s + record_s + run_s)
            now_s += record_s + run_s
        return rhythm

    def test_first_part_keeps_the_device_busy_while_the_rest_is_recorded(self) -> None:
        """Recorded in 3 ms, run in 37: a twelfth of the nodes, rounded up to a power of two."""
        assert self.rhythm(0.003, 0.037, 480, cuts=3).early == 60

    def test_two_equal_iterations_make_a_rhythm(self) -> None:
        assert self.rhythm(0.003, 0.037, 480, cuts=1).early is None
        assert self.rhythm(0.003, 0.037, 480, cuts=2).early == 60

    def test_slow_recording_sends_half(self) -> None:
        assert self.rhythm(0.1, 0.01, 480, cuts=3).early == 240

    def test_too_little_to_gain_sends_nothing_early(self) -> None:
        assert self.rhythm(EARLY_GAIN_S, EARLY_GAIN_S, 480, cuts=3).early is None

    def test_few_nodes_send_nothing_early(self) -> None:
        assert self.rhythm(0.1, 0.1, 10, cuts=3).early is None

    def test_second_part_of_an_iteration_is_not_early(self) -> None:
        rhythm = self.rhythm(0.003, 0.037, 480, cuts=3)
        rhythm.took(60)
        assert rhythm.early is None

    def test_first_part_stays_while_timings_vary(self) -> None:
        rhythm = self.rhythm(0.003, 0.037, 480, cuts=3)
        for record_s in (0.0025, 0.0045, 0.003):
            rhythm.took(60)
            rhythm.took(424)
            rhythm.ran(0.037)
            rhythm.begin(10.0)
            rhythm.took(484)
            rhythm.ran(0.037)
            rhythm.cut(10.0 + record_s, 10.1)
            assert rhythm.early == 60

    def test_share_that_is_much_too_large_shrinks(self) -> None:
        rhythm = self.rhythm(0.009, 0.031, 480, cuts=3)
        assert rhythm.early == 120
        rhythm.took(480)
        rhythm.ran(0.037)
        rhythm.begin(10.0)
        rhythm.took(480)
        rhythm.ran(0.037)
        rhythm.cut(10.003, 10.1)
        assert rhythm.early == 60

    def test_wait_without_new_nodes_changes_nothing(self) -> None:
        rhythm = self.rhythm(0.003, 0.037, 480, cuts=3)
        rhythm.took(0)
        rhythm.cut(20.0, 20.1)
        assert rhythm.early == 60

    def test_another_loop_starts_anew(self) -> None:
        rhythm = self.rhythm(0.003, 0.037, 480, cuts=3)
        rhythm.took(1000)
        rhythm.ran(0.1)
        rhythm.cut(20.0, 20.1)
        assert rhythm.early is None


@pytest.mark.native_recorder(reason="the Python recorder sends nothing behind a running part")
def test_a_loop_that_reads_is_sent_in_equal_parts(
    recorder: Recorder, backend: InProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the cell's Python and the device take some milliseconds for each iteration."""
    ticks = count()
    monkeypatch.setattr(segment, "perf_counter", lambda: 0.02 * next(ticks))
    backend.run_s = 0.02
    a, total = torch.ones(3, 3) / 3, 0.0
    with cell(recorder):
        for _ in range(8):
            x = a
            for _ in range(40):
                x = (x @ a).clamp(max=1.0)
            total += float(x.sum())
    assert total == pytest.approx(24.0)
    parts = [
        len(p.nodes) for p, cut in zip(backend.programs, backend.cuts, strict=True) if cut.cause == "streamed"
    ]
    assert len(parts) >= 4
    assert len(set(parts)) == 1
