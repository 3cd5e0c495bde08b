"""Lazy tensors in the hands of other libraries, and what an error looks like."""

from __future__ import annotations

import re

import pytest
from device_kind import KIND, OUT_OF_RANGE
from notebook_kernel import NotebookKernel

pytestmark = pytest.mark.processes

USES = (
    "import pandas, numpy, matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\n"
    "frame = pandas.DataFrame(y, columns=['a', 'b'])\n"
    "plt.figure(); plt.plot(y[:, 0], y[:, 1]); plt.hist(y.flatten()); plt.imshow(y); plt.close()\n"
    "words = f'{y.sum():.2f} {y.mean()} {float(y.max())} {int(y.argmax())} {y.shape}'\n"
    "pairs = [[float(item) for item in row] for row in y]\n"
    "seen = sum(len(batch) for batch, in torch.utils.data.DataLoader("
    "torch.utils.data.TensorDataset(torch.randn(10, 3)), batch_size=4))\n"
    "frame.values.tolist(), words, pairs, seen, sorted(y.flatten())[-1], numpy.asarray(y).sum(), 4 in y"
)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_other_libraries_see_what_they_see_of_a_plain_tensor(notebook: NotebookKernel) -> None:
    eager = notebook.run(f"y = torch.arange(6.0).view(3, 2) * 2\n{USES}")
    assert eager.status == "ok", eager.traceback
    captured = notebook.run(f"%%djinn --quiet\ny = torch.arange(6.0).view(3, 2) * 2\n{USES}")
    assert captured.values == eager.values, captured.traceback
    after = notebook.run(USES)
    assert after.values == eager.values, after.traceback


def test_an_error_ends_at_the_users_own_line(notebook: NotebookKernel) -> None:
    failed = notebook.run(
        "%%djinn\na = torch.ones(2, 3)\ndef helper(x):\n    return x.view(7)\nhelper(a + 1)"
    )
    shown = plain(failed.traceback)
    assert failed.error == "RuntimeError"
    assert "----> 4     return x.view(7)" in shown
    assert "shape '[7]' is invalid for input of size 6" in shown
    assert "djinn_lab/" not in shown


def test_a_remote_error_names_the_cell_as_the_notebook_does(notebook: NotebookKernel) -> None:
    notebook.run("1")
    failed = notebook.run("%%djinn\nindex = torch.tensor([1, 9])\nrow = torch.nn.Embedding(4, 2)(index)")
    assert failed.error == OUT_OF_RANGE.__name__
    assert "recorded at In [3], line 3, in Embedding; op aten.embedding.default" in failed.traceback
    assert notebook.run("%djinn report").text.startswith("In [3]: ")
    why = "index out of range" if KIND == "cpu" else r"\w+ error: device-side assert triggered"
    assert re.search(f"not computed: {why}", notebook.run("row").traceback)


def test_an_alarm_while_the_cell_runs_shows_the_handler_and_no_frame_of_ours(
    notebook: NotebookKernel,
) -> None:
    notebook.run(
        "import signal\ndef ring(*_):\n    raise TimeoutError('rang')\nsignal.signal(signal.SIGALRM, ring)"
    )
    failed = notebook.run(
        "%%djinn\nsignal.alarm(1)\nz = torch.randn(1500, 1500)\nfor _ in range(400):\n    z = z @ z / 40"
    )
    shown = plain(failed.traceback)
    assert failed.error == "TimeoutError"
    assert "raise TimeoutError('rang')" in shown
    assert "djinn_lab/" not in shown
    assert notebook.run("%%djinn\ntorch.zeros(2).sum().item()").values == ["0.0"]
