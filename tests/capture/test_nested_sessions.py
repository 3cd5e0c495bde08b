"""A cell of one session inside a cell of another: each records its own, then the outer one resumes."""

from __future__ import annotations

import inspect
from contextlib import suppress

import pytest
import torch
from in_process import InProcessBackend, cell
from torch import nn

from djinn_lab.capture.lazy import is_lazy, recorder_of
from djinn_lab.capture.recorders import Recorder, capturing, capturing_recorder, make_recorder
from djinn_lab.srg.program import Scope


@pytest.fixture
def inner_backend() -> InProcessBackend:
    return InProcessBackend()


@pytest.fixture
def inner(inner_backend: InProcessBackend) -> Recorder:
    return make_recorder(inner_backend)


class Calls(nn.Module):
    """Calls a function between two of its layers."""

    def __init__(self, call: object) -> None:
        super().__init__()
        self.call = call
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        assert callable(self.call)
        self.call()
        return self.second(x)  # type: ignore[no-any-return]


def _scopes(backend: InProcessBackend, op: str) -> list[Scope]:
    return [
        program.scopes[node.scope]
        for program in backend.programs
        for node in program.nodes
        if program.templates[node.template].op.split(".")[1] == op
    ]


def test_outer_cell_records_on_after_a_cell_of_another_session(
    recorder: Recorder, inner: Recorder, backend: InProcessBackend, inner_backend: InProcessBackend
) -> None:
    with cell(recorder):
        x = torch.ones(3) * 2
        with cell(inner):
            y = torch.ones(3) * 3
            assert not recorder.captures_here
            assert inner.captures_here
        assert recorder.captures_here
        assert capturing_recorder() is recorder
        z = x.sin().cuda() + 1
        assert not inner.captures_here
    assert not recorder.captures_here
    assert [recorder_of(item) for item in (x, y, z)] == [recorder, inner, recorder]
    assert (len(_scopes(backend, "mul")), len(_scopes(inner_backend, "mul"))) == (1, 1)
    assert torch.equal(z.cpu(), (torch.ones(3) * 2).sin() + 1)
    assert y.tolist() == [3.0] * 3
    assert not is_lazy(torch.ones(3) * 2)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_outer_cell_records_on_after_an_exception_in_the_inner_one(
    recorder: Recorder, inner: Recorder, error: type[BaseException]
) -> None:
    with cell(recorder):
        for _ in range(2):
            with suppress(error), capturing(inner, "inner", __file__):
                torch.ones(3) * 3
                raise error
            after = torch.ones(3) * 2
            assert recorder_of(after) is recorder
            with recorder.paused_recording():
                assert not is_lazy(torch.ones(3) * 2)
            assert is_lazy(torch.ones(3) * 2)
    with pytest.raises(error), cell(recorder), cell(inner):
        raise error
    assert capturing_recorder() is None
    assert not is_lazy(torch.ones(3) * 2)
    assert after.tolist() == [2.0] * 3


def test_three_sessions_deep_each_resumes(recorder: Recorder, inner: Recorder) -> None:
    innermost = make_recorder(InProcessBackend())
    made: list[torch.Tensor] = []
    with cell(recorder):
        with cell(inner):
            with cell(innermost):
                made.append(torch.ones(2) * 2)
            made.append(torch.ones(2) * 2)
        made.append(torch.ones(2) * 2)
        with cell(innermost):
            made.append(torch.ones(2) * 2)
        made.append(torch.ones(2) * 2)
    assert [recorder_of(item) for item in made] == [innermost, inner, recorder, innermost, recorder]
    assert all(item.tolist() == [2.0, 2.0] for item in made)


def test_a_pause_of_the_outer_recorder_leaves_the_inner_one_capturing(
    recorder: Recorder, inner: Recorder
) -> None:
    with cell(recorder), cell(inner):
        with recorder.paused_recording():
            assert not is_lazy(torch.ones(2) * 2)
        assert recorder_of(torch.ones(2) * 2) is inner


def test_random_numbers_resume_where_the_other_session_left_them(recorder: Recorder, inner: Recorder) -> None:
    expected = [torch.rand(3) for _ in range(4)]
    torch.manual_seed(0)
    with cell(recorder):
        drawn = [torch.rand(3)]
        with cell(inner):
            drawn.append(torch.rand(3))
        drawn.append(torch.rand(3))
    drawn.append(torch.rand(3))
    for ours, theirs in zip(drawn, expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_plain_tensors_written_by_one_session_are_read_by_the_other(
    recorder: Recorder, inner: Recorder
) -> None:
    shown = torch.ones(4).numpy()
    plain = torch.from_numpy(shown)
    half = torch.ones(8)[:4]
    with cell(recorder):
        half += torch.ones(4)
        with cell(inner):
            seen = half * plain
            half *= 2
        after = half + 1
    assert seen.tolist() == [2.0] * 4
    assert half.tolist() == [4.0] * 4
    assert after.tolist() == [5.0] * 4


def test_nodes_after_an_inner_cell_keep_the_outer_ones_module_and_line(
    recorder: Recorder, inner: Recorder, backend: InProcessBackend, inner_backend: InProcessBackend
) -> None:
    other = nn.Sequential(nn.Linear(3, 3))
    made: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad(), capturing(inner, "inner", "<another file>"):
            made.append(other(torch.ones(2, 3) * 1))
            inner.finish("cell end")

    outer = Calls(call)
    with torch.no_grad(), capturing(recorder, "outer", __file__):
        kept = outer(torch.ones(2, 3) * 1)
        frame = inspect.currentframe()
        assert frame is not None
        line = frame.f_lineno + 1
        kept = kept.sin()
        recorder.finish("cell end")
    assert [scope.module for scope in _scopes(backend, "addmm")] == ["Calls.first", "Calls.second"]
    assert [scope.module for scope in _scopes(inner_backend, "addmm")] == ["Sequential.0"]
    assert {scope.cell for scope in _scopes(inner_backend, "addmm")} == {"inner"}
    [sine] = _scopes(backend, "sin")
    assert (sine.cell, sine.line, sine.module) == ("outer", line, "")


def test_an_optimizer_step_of_the_inner_cell_is_no_step_of_the_outer(
    recorder: Recorder, inner: Recorder, backend: InProcessBackend, inner_backend: InProcessBackend
) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cell(recorder):
        with cell(inner):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        kept = (torch.ones(2) * 2).sin()
    assert kept.shape == (2,)
    assert all(recorder_of(parameter) is inner for parameter in model.parameters())
    assert "optimizer" in {scope.phase for program in inner_backend.programs for scope in program.scopes}
    assert {scope.phase for program in backend.programs for scope in program.scopes} == {"other"}
