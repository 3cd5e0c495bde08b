"""Cells with a tolerance on a real pool: TorchInductor compiles in a process that is closed in, and sandboxed
workers load what it made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from device_kind import KIND, only_cpus
from real_pool import PoolUnderTest, kill_worker

from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.errors import OptionError
from djinn_lab.native.compiler import find_compiler

pytestmark = pytest.mark.processes
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="this machine has no C++ compiler")
TOLERANCE = 1e-5
COMPILED_WITHIN_S = 200.0


def cell_of(session: Session, numbers: torch.Tensor, tolerance: float | None = TOLERANCE) -> Cell:
    with session.capture("repeated", tolerance=tolerance) as cell:
        cell.result = _computed(numbers)  # type: ignore[attr-defined]
    return cell


def _computed(numbers: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        numbers = torch.tanh(numbers * numbers + 0.5)
    return numbers.t()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("pool"), devices=f"{KIND}:1") as pool:
        yield pool


def run_until(session: Session, numbers: torch.Tensor, ends: Callable[[str], bool]) -> list[str]:
    """Run cells until one says what it should, and return what all of them said."""
    said: list[str] = []
    deadline_s = time.monotonic() + COMPILED_WITHIN_S
    expected = _computed(numbers)
    while True:
        cell = cell_of(session, numbers)
        said.append(cell.report.compiled)
        result = session.fetch(cell.result)  # type: ignore[attr-defined]
        torch.testing.assert_close(result, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert result.stride() == expected.stride()
        if ends(said[-1]):
            return said
        assert time.monotonic() < deadline_s, said[-1]
        if "being compiled" in said[-1]:
            time.sleep(0.2)  # beside the compiler, which is niced


@needs_compiler
@only_cpus("the stand-in's card is out of the compiler's reach")
def test_repeated_cell_is_compiled_in_the_background_within_its_tolerance(pool: PoolUnderTest) -> None:
    numbers = torch.randn(300, 400)
    with pool.session() as session:
        said = run_until(session, numbers, lambda one: "compiled and within" in one)
        assert said[0].startswith("run op by op; compiled once")
        assert "12 ops in 1 region are compiled and within " in said[-1]
        assert any("compiled" in line for line in cell_of(session, numbers).report.lines())
        exact = cell_of(session, numbers, tolerance=0.0)
        assert exact.report.compiled == ""
        assert torch.equal(session.fetch(exact.result), _computed(numbers))  # type: ignore[attr-defined]
    with pool.session() as session:  # what was compiled serves the next session at once
        run_until(session, numbers, lambda one: "compiled and within" in one)
        kill_worker(pool)
        assert run_until(session, numbers, lambda one: "by op:" in one)[-1].endswith("that ran it died")


def test_session_has_a_tolerance_for_cells_that_name_none(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        assert cell_of(session, torch.ones(2, 2), tolerance=None).report.compiled == ""
        session.tolerance = TOLERANCE
        assert cell_of(session, torch.ones(2, 2), tolerance=None).report.compiled


@pytest.mark.parametrize("tolerance", [-1e-5, float("nan"), 0.2, "small"])
def test_tolerance_that_is_none_is_refused(pool: PoolUnderTest, tolerance: float) -> None:
    with pool.session() as session, pytest.raises(OptionError, match="is not a tolerance"):
        session.capture(tolerance=tolerance)
