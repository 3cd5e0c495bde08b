"""What NumPy, pandas, files and code that reads an address see of captured tensors."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path

import numpy as np
import torch
from in_process import InProcessBackend, cell
from safetensors.torch import load_file, save_file, save_model
from torch import nn

from djinn_lab.capture.recorders import Recorder


def test_numpy_memory_is_read_as_it_is_at_each_use(recorder: Recorder) -> None:
    array = np.ones(3, dtype=np.float32)
    tensor = torch.from_numpy(array)
    with cell(recorder):
        first = tensor + 0
        array[:] = 5
        second = tensor + 0
    assert first.tolist() == [1, 1, 1]
    assert second.tolist() == [5, 5, 5]


def test_deepcopy_save_and_numpy(recorder: Recorder, tmp_path: object) -> None:
    network = nn.Linear(3, 2)
    with cell(recorder):
        y = network(torch.ones(1, 3))
    copied = copy.deepcopy(network)
    assert torch.equal(copied.weight.cpu(), network.weight.cpu())
    path = f"{tmp_path}/weights.pt"
    torch.save(network.state_dict(), path)
    loaded = torch.load(path)
    assert type(loaded["weight"]) is torch.Tensor
    assert torch.equal(loaded["weight"], network.weight.detach().cpu())
    assert y.detach().numpy().shape == (1, 2)
    assert np.asarray(y.detach()).shape == (1, 2)


def test_repr_in_silent_requests_shows_metadata_only(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        x = torch.arange(3.0)
    programs = len(backend.programs)
    recorder.may_display = lambda: False
    assert "shape=(3,)" in repr(x)
    assert len(backend.programs) == programs
    recorder.may_display = lambda: True
    assert repr(x) == "tensor([0., 1., 2.])"


def test_numpy_pandas_and_formatting_see_plain_values(recorder: Recorder) -> None:
    import pandas

    with cell(recorder):
        x = torch.arange(4.0)
        inside = f"{x.sum():.1f}"
    assert inside == "6.0"
    assert f"{x[1]:.2f}" == "1.00"
    assert (int(x[3]), bool(x[0]), float(x[2])) == (3, False, 2.0)
    assert [float(item) for item in x] == [0.0, 1.0, 2.0, 3.0]
    assert pandas.DataFrame({"x": x.numpy()})["x"].mean() == 1.5
    writable = np.array(x)
    writable += 1
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_lazy_tensor_shares_memory_with_its_numpy_array(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.arange(4.0)
    array = x.numpy()
    array[0] = 9
    with cell(recorder):
        y = x + 1
        x[1] = 7
        assert array.tolist() == [9.0, 7.0, 2.0, 3.0]
    assert (x.tolist(), y.tolist()) == ([9.0, 7.0, 2.0, 3.0], [10.0, 2.0, 3.0, 4.0])


def test_saving_inside_a_cell(recorder: Recorder, tmp_path: object) -> None:
    network = nn.Linear(2, 2)
    path = f"{tmp_path}/inside.pt"
    with cell(recorder):
        y = network(torch.ones(1, 2))
        torch.save({"weights": network.state_dict(), "y": y.detach()}, path)
    loaded = torch.load(path)
    assert type(loaded["y"]) is torch.Tensor
    assert torch.equal(loaded["y"], y.detach().cpu())


def test_memory_by_address(recorder: Recorder, tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    tied = nn.Sequential(network, network)
    with cell(recorder):
        tied[0](torch.ones(1, 3))
        save_file({"weight": network.weight.detach()}, tmp_path / "inside.safetensors")
        with torch.no_grad():
            network.weight.add_(1)
    save_model(tied, str(tmp_path / "outside.safetensors"))
    assert torch.equal(load_file(tmp_path / "outside.safetensors")["0.weight"], network.weight.cpu())
    assert torch.equal(load_file(tmp_path / "inside.safetensors")["weight"] + 1, network.weight.cpu())
    values = (ctypes.c_float * 6).from_address(network.weight.data_ptr())
    assert list(values) == network.weight.flatten().tolist()
    assert network.weight[1].untyped_storage().data_ptr() == network.weight.data_ptr()
    values[0] = 7.0
    with cell(recorder):
        doubled = network.weight * 2
    assert doubled[0, 0].item() == 14.0


def test_safetensors_are_read_in_a_cell(recorder: Recorder, tmp_path: Path) -> None:
    path = str(tmp_path / "tensors")
    with cell(recorder):
        save_file({"x": torch.ones(3) * 2}, path)
        loaded = load_file(path)["x"]
        loaded.mul_(3)
        doubled = loaded * 2
    assert [loaded.tolist(), doubled.tolist()] == [[6.0] * 3, [12.0] * 3]
