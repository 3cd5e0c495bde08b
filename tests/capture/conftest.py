from __future__ import annotations

import pytest
import torch
from in_process import InProcessBackend

from djinn_lab.capture.recorders import CHOICE, Recorder, make_recorder
from djinn_lab.native import load, why_missing


@pytest.fixture(autouse=True, params=["native", "python"])
def recorder_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs over both recorders."""
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
