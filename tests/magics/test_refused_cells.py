"""Cells that the pool refuses: what the notebook is afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from device_kind import KIND
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest

from djinn_lab.jobs.fairness.limits import Limits

pytestmark = pytest.mark.processes

BEFORE = """%%djinn
x = torch.arange(3.0)
y = x * 2
weight = torch.nn.Parameter(x + 1)
several, named, seen = [x + 1, x + 2], {"a": x + 3}, {1}
fixed = torch.ones(3)
number, numbers = torch.tensor(1.0), [torch.tensor(2)]
layer = torch.nn.Linear(3, 3)
optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(1, 3)).pow(2).sum().backward()
        optimizer.step()
train(1)
(weight * x).sum()"""
CELL = """torch.manual_seed(9)
random = torch.rand(4)
x = x + 1
y += 5
x *= 3
with torch.no_grad():
    weight.add_(1)
several[0] = several[0] * 2
several[1].mul_(3)
several.append(x)
named["a"] = named["b"] = x
seen.add(2)
fixed.requires_grad_()
number.add_(1)
numbers[0] += 1
train(3)
z = x + y
z"""
STATE = "x.tolist(), y.tolist(), weight.tolist(), [t.tolist() for t in several], "
STATE += "{k: t.tolist() for k, t in named.items()}, seen, fixed.requires_grad, torch.rand(2).tolist(), "
STATE += "number.item(), numbers[0].item(), layer.weight.tolist(), "
STATE += "[t.tolist() for t in optimizer.state[layer.weight].values()]"


def state(notebook: NotebookKernel) -> list[str]:
    read = notebook.run(STATE)
    assert read.status == "ok", read.traceback
    return read.values


def begun(notebook: NotebookKernel) -> list[str]:
    """Run the cell before, and return the state after it, which the next look at it finds unchanged."""
    assert notebook.run(BEFORE).status == "ok"
    notebook.run("torch.manual_seed(3)")
    found = state(notebook)
    notebook.run("torch.manual_seed(3)")
    return found


@pytest.fixture
def limited(pool: PoolUnderTest) -> Iterator[None]:
    """No user may ask for a priority above NORMAL."""
    accounts = [user.name for user in pool.rest.users()]
    for account in accounts:
        pool.rest.set_targets(account, limits=Limits(rank_min=2))
    yield
    for account in accounts:
        pool.rest.set_targets(account, limits=Limits())


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    "options", ["--target gpu=h200", "--gang 9:9", "--after 0123456789abcdef", "--priority HIGH"]
)
def test_refused_cell_changes_nothing_in_the_notebook(notebook: NotebookKernel, options: str) -> None:
    before = begun(notebook)
    refused = notebook.run(f"%%djinn {options}\n{CELL}")
    assert refused.error == "Refused"
    assert "variables of before it are what they were" in refused.traceback
    assert state(notebook) == before
    assert f"stay on {KIND}:" in notebook.run("%djinn profile research_training").text
    notebook.run("%djinn profile basic_inference")
    again = notebook.run(f"%%djinn\n{CELL}")
    assert again.values == ["tensor([ 8., 13., 18.])"], again.traceback


def test_refused_noblock_cell_changes_nothing_once_that_is_known(notebook: NotebookKernel) -> None:
    before = begun(notebook)
    notebook.run(f"%%djinn -a -o handle --target gpu=h200\n{CELL}")
    refused = notebook.run("handle.get()")
    assert refused.error == "Refused"
    assert "variables of before it are what they were" in refused.traceback
    assert state(notebook) == before


def test_refused_noblock_cell_leaves_what_was_changed_since(notebook: NotebookKernel) -> None:
    begun(notebook)
    notebook.run(f"%%djinn -a -o handle --target gpu=h200\n{CELL}")
    notebook.run("x = 7\nseveral.append(8)\ndel y")
    following = notebook.run("%%djinn\ntorch.ones(2) + 1")
    assert "raised where the session is used next" in following.traceback
    assert "variables of before it are what they were" in following.traceback
    kept = notebook.run("x, several[-1], 'y' in globals(), weight.tolist(), named['a'].tolist(), len(named)")
    assert kept.values == ["(7, 8, False, [1.0, 2.0, 3.0], [3.0, 4.0, 5.0], 1)"], kept.traceback


def test_cell_without_memory_leaves_tensors_and_random_numbers(notebook: NotebookKernel) -> None:
    begun(notebook)
    drawn = notebook.run("torch.rand(2).tolist()").values
    notebook.run("torch.manual_seed(3)")
    cell = "y += 5\nweight.data.add_(1)\nx = x + torch.ones(10**5, 10**5)[0, :3]"
    refused = notebook.run(f"%%djinn\ntorch.manual_seed(9)\n{cell}")
    assert refused.error == "DeviceMemoryError"
    assert notebook.run("torch.rand(2).tolist()").values == drawn
    assert notebook.run("y.tolist(), weight.tolist()").values == ["([0.0, 2.0, 4.0], [1.0, 2.0, 3.0])"]
    assert notebook.run("x.tolist()").error == "ValueLost"
    assert notebook.run(f"%%djinn -t {KIND}:0\nx = weight * 1\n{cell}").error == "DeviceMemoryError"
    assert notebook.run("%%djinn\nx = weight * 2").status == "ok"
    assert notebook.run(f"%%djinn -t {KIND}:0\n{cell}").error == "DeviceMemoryError"
    assert notebook.run("x.tolist()").values == ["[2.0, 4.0, 6.0]"]


def test_config_says_that_no_device_is_the_target(notebook: NotebookKernel) -> None:
    begun(notebook)
    unknown = notebook.run("%djinn_config --target gpu=h200")
    assert unknown.status == "ok", unknown.traceback
    assert "target       gpu=h200, and now cells with it are refused: no device is gpu=h200" in unknown.text
    assert notebook.run("%%djinn\ny + 1").error == "Refused"
    known = notebook.run(f"%djinn_config --target {KIND}:0")
    assert f"target       {KIND}:0\n" in known.text
    assert notebook.run("%%djinn\ny + 1").values == ["tensor([1., 3., 5.])"]


def test_error_of_the_cells_own_code_leaves_its_variables(notebook: NotebookKernel) -> None:
    begun(notebook)
    failed = notebook.run("%%djinn --target kind=cpu\nx = 5\ntorch.ones(3) + 1\nraise ValueError")
    assert failed.error == "ValueError"
    assert "Nothing of the cell ran" not in failed.traceback
    assert notebook.run("x").values == ["5"]
