"""What a cell may do after it wrote in place to a view of plain memory, which the pool then knows better."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import cell
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from djinn_lab.capture.recorders import Recorder
from djinn_lab.errors import CaptureError


def _sparse_step() -> torch.Tensor:
    embedding = nn.Embedding(6, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        embedding(torch.tensor([1, 2, 1])).pow(2).sum().backward()
        optimizer.step()
    return embedding.weight


def _loaded() -> torch.Tensor:
    saved = io.BytesIO()
    torch.save(nn.Linear(3, 2), saved)
    saved.seek(0)
    module: nn.Linear = torch.load(saved, weights_only=False)
    return module.weight


def _assigned() -> torch.Tensor:
    module = nn.Linear(3, 3)
    state = {"weight": torch.from_numpy(np.eye(3, dtype="f4")), "bias": torch.zeros(3)}
    module.load_state_dict(state, assign=True)
    return module.weight


def _without_shape() -> torch.Tensor:
    module = nn.LazyLinear(4)
    module(torch.ones(2, 3))
    return module.weight


CODE: dict[str, Callable[[], torch.Tensor]] = {
    "a parameter": lambda: nn.Parameter(torch.tensor([1.0, 2.0])),
    "a parameter of an array": lambda: nn.Parameter(torch.from_numpy(np.eye(3, dtype="f4"))),
    "an embedding of vectors": lambda: nn.Embedding.from_pretrained(torch.tensor([[1.0, 2.0]])).weight,
    "a module that was saved": _loaded,
    "a state that is assigned": _assigned,
    "a module without shapes": _without_shape,
    "a module without memory": lambda: torch.ones(copy.deepcopy(PLAIN).to("meta").weight.shape),
    "a sparse product": lambda: (torch.eye(3).to_sparse() * 2).to_dense(),
    "a sparse gradient": _sparse_step,
}
PLAIN = nn.Linear(3, 3)
native_only = pytest.mark.native_recorder(reason="parameters of its tensors are made otherwise")


@native_only
@pytest.mark.parametrize("name", CODE)
def test_a_cell_that_wrote_a_view_goes_on_as_plain_torch(name: str, recorder: Recorder) -> None:
    torch.manual_seed(3)
    expected = CODE[name]().detach()
    data = torch.arange(20.0).view(10, 2)
    part = data[:8]
    torch.manual_seed(3)
    with cell(recorder):
        part.sub_(1)
        found = CODE[name]()
    assert torch.equal(found.detach().cpu(), expected)
    assert torch.equal(data[:8], torch.arange(16.0).view(8, 2) - 1)


@native_only
def test_sparse_gradients_of_a_plain_step_are_trained_on(recorder: Recorder) -> None:
    def made() -> tuple[nn.Embedding, torch.optim.Optimizer, Callable[[], Any]]:
        torch.manual_seed(4)
        embedding = nn.Embedding(6, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters())

        def step() -> None:
            optimizer.zero_grad()
            embedding(torch.tensor([1, 2, 1])).pow(2).sum().backward()
            optimizer.step()

        step()
        return embedding, optimizer, step

    (found, _, step), (expected, _, eager_step) = made(), made()
    eager_step()
    eager_step()
    with cell(recorder):
        step()
        step()
    assert torch.equal(found.weight.detach().cpu(), expected.weight.detach())


def test_a_module_that_copies_gradients_by_itself_is_refused(recorder: Recorder, tmp_path: Path) -> None:
    """Its C++ code would read memory that the notebook does not have, and end the process."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        module = DistributedDataParallel(nn.Linear(4, 2))
        with cell(recorder):
            with pytest.raises(CaptureError, match="DistributedDataParallel cannot be captured"):
                module(torch.randn(3, 4))
            with pytest.raises(CaptureError, match="Use the module that it wraps"):
                DistributedDataParallel(nn.Linear(4, 2))
            found = module.module(torch.ones(3, 4)).sum()
        assert torch.equal(found.detach().cpu(), module(torch.ones(3, 4)).sum().detach())
    finally:
        distributed.destroy_process_group()
