from __future__ import annotations

import pytest
import torch
from in_process import InProcessBackend

from djinn_lab.capture.recorders import Recorder, make_recorder


@pytest.fixture
def backend() -> InProcessBackend:
    return InProcessBackend()


@pytest.fixture
def recorder(backend: InProcessBackend) -> Recorder:
    return make_recorder(backend)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)
