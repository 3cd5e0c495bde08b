"""``--strict``, ``--verify``, ``--dry-run`` and ``--explain``, and the warning about loops that cut."""

from __future__ import annotations

import pytest
from device_kind import KIND
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest

pytestmark = pytest.mark.processes

TRAINING = """
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3),
                              torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
inputs, labels = torch.randn(32, 8), torch.randint(0, 2, (32,))
"""
STEPS = """
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
"""


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("float(y.sum())", "item"),
        ("bool(y.sum() > 0)", "item"),
        ("print(y)", "print"),
        ("y.numpy()", "numpy"),
        ("y.tolist()", "tolist"),
        ("y[y > 0]", "index"),
        ("torch.equal(y, y + 1)", "torch.equal"),
    ],
)
def test_strict_forbids_a_cut_at_its_line(notebook: NotebookKernel, line: str, named: str) -> None:
    failed = notebook.run(f"%%djinn --strict\ny = torch.ones(3) + 1\n\nz = y * 2\n{line}\nlate = 1")
    assert failed.error == "StrictError"
    assert f"line 5 needs a value in mid-cell: {named}" in failed.traceback
    assert "--> " in failed.traceback
    assert "__djinn_cell__" not in failed.traceback
    assert "djinn_lab/capture" not in failed.traceback
    assert notebook.run("z.tolist(), 'late' in globals()").values == ["([4.0, 4.0, 4.0], False)"]


def test_strict_allows_what_is_asked_for_and_what_needs_no_fetch(notebook: NotebookKernel) -> None:
    allowed = (
        "import djinn_lab\ny = torch.ones(3) + 1\na = y.cpu()\nb = djinn_lab.fetch([y])\n"
        "for _ in range(6):\n    a = (y + 1).cpu()\na.tolist()\ny"
    )
    done = notebook.run(f"%%djinn --strict\n{allowed}")
    assert done.values == ["tensor([2., 2., 2.])"], done.traceback
    assert "loop" not in done.text
    notebook.run("%djinn_config --strict")
    assert notebook.run("%%djinn\nfloat(torch.ones(2).sum())").error == "StrictError"
    assert notebook.run("%%djinn --no-strict\nfloat(torch.ones(2).sum())").values == ["2.0"]
    assert notebook.run("%djinn_config --no-strict").status == "ok"


def test_verify_compares_with_eager_torch_and_changes_nothing(notebook: NotebookKernel) -> None:
    notebook.run(TRAINING)
    notebook.run(
        "import copy; saved = copy.deepcopy((network, optimizer.state_dict())); torch.manual_seed(1)"
    )
    notebook.run("torch.set_num_threads(1)")  # as the pool's devices: sums are split by threads
    plain = notebook.run(f"{STEPS}\n[float(loss) for loss in losses], float(torch.rand(()))")
    notebook.run("network, state = copy.deepcopy(saved)")
    notebook.run("optimizer = torch.optim.AdamW(network.parameters(), lr=0.01); torch.manual_seed(1)")
    done = notebook.run(f"%%djinn --verify\nprint('once')\n{STEPS}\nlosses[-1]")
    assert done.status == "ok", done.traceback
    assert done.text.count("once") == 1
    [line] = [line for line in done.text.splitlines() if line.startswith("verified: ")]
    assert ("bit for bit" if KIND == "cpu" else "equal within tolerance") in line
    assert int(line.split()[1]) >= 8 + 3  # parameters, buffers, gradients, optimizer state, losses
    assert notebook.run("[float(loss) for loss in losses], float(torch.rand(()))").values == plain.values


def test_verify_with_views_in_place_ops_and_plain_tensors(notebook: NotebookKernel) -> None:
    notebook.run("host = torch.zeros(4); generator = torch.Generator().manual_seed(3)")
    notebook.run("%%djinn\nbase = torch.arange(6.0)")
    done = notebook.run(
        "%%djinn --verify\nview = base[2:4]\nview += 10\nbase.mul_(2)\nhost.add_(base[0] + 1)\n"
        "noise = torch.randn(5, generator=generator)\nmore = torch.rand(3)\ntotal = base.sum().item()\n"
        "grown = base[base > 5]\n{'x': base.view(2, 3).t()}"
    )
    assert done.status == "ok", done.traceback
    assert "verified: " in done.text
    assert notebook.run("base.tolist(), host.tolist(), total").values == [
        "([0.0, 2.0, 24.0, 26.0, 8.0, 10.0], [1.0, 1.0, 1.0, 1.0], 70.0)"
    ]


def test_verify_names_the_variable_and_the_first_index_that_differ(notebook: NotebookKernel) -> None:
    notebook.run(
        "from djinn_lab.capture.shadow import Shadow\n"
        "honest = Shadow._note\n"
        "def wrong(self, signature, ours, theirs):\n"
        "    if signature.name == 'aten.mul.Tensor':\n        theirs[2] += 0.5\n"
        "    honest(self, signature, ours, theirs)\n"
        "Shadow._note = wrong"
    )
    failed = notebook.run("%%djinn --verify\na = torch.ones(4) + 1\nproduct = a * 3")
    assert failed.error == "VerificationError"
    assert "product: 1 of 4 elements, first at index [2] (6.0, eager torch has 6.5)" in failed.traceback
    assert "largest difference 0.5, not within tolerance" in failed.traceback
    quiet = notebook.run("%%djinn --verify --quiet\na = torch.ones(4) + 1\nproduct = a * 3")
    assert quiet.error == "VerificationError"
    assert notebook.run("product.tolist()").values == ["[6.0, 6.0, 6.0, 6.0]"]
    assert notebook.run("Shadow._note = honest").status == "ok"


def test_a_dry_run_plans_and_leaves_everything_as_it_was(
    notebook: NotebookKernel, pool: PoolUnderTest
) -> None:
    notebook.run(TRAINING)
    notebook.run("%%djinn\nkept = torch.zeros(3)\nkept += 1")
    state = "kept.tolist(), network[0].weight.sum().item(), network[0].weight.grad, len(optimizer.state), "
    state += "torch.get_rng_state().sum().item(), [int(s['step']) for s in optimizer.state.values()]"
    before = notebook.run(state).values
    jobs = len(pool.rest.jobs(limit=1000))
    notebook.run("%%djinn\nnamed = kept * 2")
    assert notebook.run("%%djinn --dry-run\nnamed = named + 1").status == "ok"
    assert notebook.run("named.tolist()").values == ["[2.0, 2.0, 2.0]"]
    jobs = len(pool.rest.jobs(limit=1000))
    done = notebook.run(f"%%djinn --dry-run\nkept += 5\n{STEPS}\nnew = torch.randn(4) + kept.sum()\nnew")
    assert done.status == "ok", done.traceback
    assert done.values == []
    assert "Order: " in notebook.run("%djinn schedule").shown[0]
    for expected in (
        "nothing ran",
        "Queue: ",
        "Order: ",
        "Memory: peak",
        "Predicted: ",
        "backward",
        "Cuts: none",
    ):
        assert expected in done.text
    assert len(pool.rest.jobs(limit=1000)) == jobs
    assert notebook.run(state).values == before
    lost = notebook.run("new.tolist()")
    assert lost.error == "ValueLost"
    assert "dry run" in lost.traceback
    assert notebook.run("%%djinn\nnew + 1").error == "ValueLost"
    real = notebook.run(f"%%djinn --verify\nkept += 5\n{STEPS}\nkept")
    assert real.values == ["tensor([6., 6., 6.])"], real.traceback
    assert "verified: " in real.text
    again = notebook.run(f"%%djinn --dry-run\n{STEPS}")
    assert again.status == "ok", again.traceback
    assert notebook.run("[int(s['step']) for s in optimizer.state.values()]").values == ["[3, 3, 3, 3, 3, 3]"]
    after = notebook.run(f"%%djinn --verify\n{STEPS}\nlosses[-1].item() < 10")
    assert after.values == ["True"], after.traceback


def test_a_dry_run_leaves_plain_tensors_plain_and_as_they_were(notebook: NotebookKernel) -> None:
    notebook.run("import torch\nalone = torch.zeros(3)\nlooked_at = torch.zeros(3)\nview = looked_at[1:]")
    notebook.run("weight = torch.ones(3, requires_grad=True)")
    written = "alone.add_(1)\nalone.mul_(torch.rand(3))\nview.sub_(1)\nwith torch.no_grad(): weight.zero_()"
    state = "[one.tolist() for one in (alone, looked_at, weight)], weight.requires_grad, weight.is_leaf"
    before = notebook.run(state).values
    for _ in range(2):
        assert notebook.run(f"%%djinn --dry-run\n{written}").status == "ok"
        again = notebook.run(state)
        assert again.values == before, again.traceback
    assert notebook.run("%%djinn\nalone.add_(1)\nalone.tolist()").values == ["[1.0, 1.0, 1.0]"]


def test_dry_run_plans_for_the_devices_that_suit_the_target(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn\nplanned = torch.ones(3) + 1")
    here = notebook.run(f"%%djinn --dry-run --target kind={KIND}\nplanned = planned + 1")
    assert here.status == "ok", here.traceback
    assert f"Queue: {KIND}:" in here.text
    planned = next(line for line in here.text.splitlines() if line.startswith("Device "))
    assert planned in notebook.run("%djinn schedule").shown[0]
    nowhere = notebook.run("%%djinn --dry-run --target gpu=h200\nplanned = planned + 1")
    assert nowhere.status == "ok", nowhere.traceback
    assert f"It would be refused: no device is gpu=h200 (devices: {KIND}:0 (kind={KIND}" in nowhere.text
    assert "Order: " not in nowhere.text


def test_a_dry_run_ends_where_the_cell_needs_a_value(notebook: NotebookKernel) -> None:
    done = notebook.run(
        "%%djinn --dry-run\na = torch.ones(3) * 2\n"
        "try:\n    b = a.sum().item()\nexcept Exception:\n    pass\nc = 1"
    )
    assert done.status == "ok", done.traceback
    assert "Cuts: first at line 4, which needs a value: item" in done.text
    assert notebook.run("'c' in globals()").values == ["False"]
    assert notebook.run("%%djinn\n(torch.ones(2) + 1).tolist()").values == ["[2.0, 2.0]"]
    assert "nothing to --verify" in notebook.run("%%djinn --dry-run --verify\n1").traceback


def test_explain_says_where_when_and_why(notebook: NotebookKernel) -> None:
    done = notebook.run("%%djinn --explain\nx = torch.ones(4) + 1\nx.sum().item()")
    for expected in (
        "Placement: ",
        "Queue: priority NORMAL",
        "the session is bound to it, ",
        "Schedule: Order: ",
        "at line 3, as a value was needed",
    ):
        assert expected in done.text


def test_a_cell_runs_on_its_target_or_says_what_there_is(notebook: NotebookKernel) -> None:
    notebook.run(f"%%djinn -t {KIND}:0\nx = torch.ones(3) + 1")
    done = notebook.run(f"%%djinn -t {KIND}:1 --explain\ny = x + 0")
    assert f"it asked for {KIND}:1" in done.text
    assert f"Device {KIND}:1: the cell asked for {KIND}:1, " in notebook.run("%djinn schedule").shown[0]
    assert f"on {KIND}:1." in done.text
    assert notebook.run("%%djinn\nfloat(y.sum())").values == ["6.0"]
    refused = notebook.run("%%djinn --target gpu=h200\ny = torch.ones(3) + 1")
    assert "no device is gpu=h200" in refused.traceback
    assert f"kind={KIND}" in refused.traceback
    reported = notebook.run("%%djinn --target gpu=h200 --report --explain\ny = torch.ones(3) + 1")
    said = reported.text + reported.traceback
    assert ": nothing of it ran (" in said
    assert ", and nothing of it ran." in said
    assert "None" not in said
    assert "write key=value" in notebook.run("%%djinn --target gpu=\n1").traceback
    assert "no taint" in notebook.run("%%djinn --tolerate 'a b'\n1").traceback


def test_a_loop_that_cuts_gets_one_warning(notebook: NotebookKernel) -> None:
    loop = "x = torch.ones(3)\nfor _ in range(7):\n    x = x + 1\n    if x.sum() > 100:\n        break"
    done = notebook.run(f"%%djinn\n{loop}")
    assert done.text.count("Djinn Lab: a loop waits") == 1
    assert "line 5: item" in done.text
    assert "cut the cell 7 times" in done.text
    assert "Instead: collect the tensors in a list" in done.text
    assert "cut the cell 7 times" in notebook.run("%djinn report").text
    assert "loop" not in notebook.run(f"%%djinn --quiet\n{loop}").text
    assert "loop" not in notebook.run("%%djinn\nfor _ in range(9):\n    y = (x + 1).cpu()").text
    assert "loop" not in notebook.run("%%djinn\nfor _ in range(4):\n    y = (x + 1).sum().item()").text


def test_tolerance_is_an_option_of_cells_and_notebooks(notebook: NotebookKernel) -> None:
    done = notebook.run("%%djinn --tolerance 1e-5 --report\nroot = (torch.ones(4) * 2).sqrt()")
    assert "compiled: run op by op; compiled once it has run 3 times" in done.text
    assert "compiled: " not in notebook.run("%%djinn --report\nroot = (torch.ones(4) * 2).sqrt()").text
    assert "is not a tolerance" in notebook.run("%%djinn --tolerance 7\n1").traceback
    assert "bit for bit" in notebook.run("%%djinn --tolerance 1e-5 --verify\n1").traceback
    notebook.run("%djinn_config --tolerance 1e-5")
    assert "compiled: " in notebook.run("%%djinn --report\nroot = (torch.ones(4) * 2).sqrt()").text
