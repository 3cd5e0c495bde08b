"""Tests here run over both recorders. Of the one in Python, which serves where no compiler is, ``make test``
has those of a contract, and ``make sweep-recorders`` all."""

from __future__ import annotations

import os

import pytest
import torch
from in_process import InProcessBackend

from djinn_lab.capture.recorders import CHOICE, Recorder, make_recorder
from djinn_lab.native import load, why_missing

CONTRACT = {
    "test_accelerator_settings",
    "test_checkpoints",
    "test_found_outside_settings",
    "test_nested_sessions",
    "test_no_stale_reads",
    "test_randomness_and_data",
    "test_scopes",
    "test_semantics",
    "test_training",
    "test_whole_tensors",
}
"""Modules whose tests the recorder in Python passes in ``make test``."""
OPTIMIZERS = {"SGD", "Adam, fused", "AdamW, foreach", "LBFGS"}
"""One of each kind of step; the recorder in Python trains with these in ``make test``."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "SWEEP_RECORDERS" in os.environ or load("recorder") is None:
        return
    left_out = [item for item in items if _is_python_beyond_contract(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_python_beyond_contract(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    kind = None if callspec is None else callspec.params.get("recorder_kind")
    if kind != "python":
        return False
    if item.path.stem == "test_training" and "name" in callspec.params:
        return callspec.params["name"] not in OPTIMIZERS
    return item.path.stem not in CONTRACT


@pytest.fixture(autouse=True, params=["native", "python"])
def recorder_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let a test run over one of the recorders."""
    kind: str = request.param
    if kind == "native" and load("recorder") is None:
        pytest.skip(why_missing("recorder"))
    only = request.node.get_closest_marker("native_recorder")
    if kind == "python" and only is not None:
        pytest.skip(only.kwargs["reason"])
    monkeypatch.setenv(CHOICE, kind)
    return kind


@pytest.fixture
def backend() -> InProcessBackend:
    return InProcessBackend()


@pytest.fixture
def recorder(backend: InProcessBackend) -> Recorder:
    return make_recorder(backend)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)
