"""``%djinn result``, ``push`` and ``report --html``, and the nearest name for a misspelt one."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from device_kind import KIND, OUT_OF_RANGE
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest

pytestmark = pytest.mark.processes


def test_result_of_an_ordinary_cell_is_what_it_displayed(
    notebook: NotebookKernel, pool: PoolUnderTest
) -> None:
    assert notebook.run("%djinn result").error == "OptionError"
    notebook.run("%%djinn\ny = torch.ones(2) + 1\ny * 2;")
    assert notebook.run("%djinn result").values == ["tensor([4., 4.])"]
    own = notebook.run("get_ipython().run_line_magic('djinn', 'last').report.job").values[0].strip("'")
    assert notebook.run(f"%djinn result {own[:10]}").values == ["tensor([4., 4.])"]
    notebook.run("%%djinn\ny = torch.ones(2) + 1")
    assert "displayed nothing" in notebook.run("%djinn result").text


def test_result_of_a_noblock_cell_waits_by_name_by_job_and_without(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn -a -o first\n(torch.ones(2) + 1).sum()")
    assert notebook.run("%djinn result").values == ["tensor(4.)"]
    notebook.run("%%djinn -a\n'text', (torch.ones(2) + 2).sum()")
    assert notebook.run("%djinn result").values == ["('text', tensor(6.))"]
    assert notebook.run("%djinn result first").values == ["tensor(4.)"]
    job = notebook.run("first.job").values[0].strip("'")
    assert notebook.run(f"%djinn result {job[:12]}").values == ["tensor(4.)"]
    notebook.run("%%djinn -a\nz = torch.ones(2) + 1")
    assert "displayed nothing" in notebook.run("%djinn result").text
    notebook.run("%%djinn -a\n'no torch work'")
    assert notebook.run("%djinn result").text == "'no torch work'\n"


def test_result_of_a_failed_noblock_cell_is_its_error(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn -a\ntorch.ones(3)[torch.tensor([9])]")
    assert notebook.run("%djinn result").error == OUT_OF_RANGE.__name__
    assert notebook.run("%%djinn\n(torch.ones(1) + 1).item()").values == ["2.0"]


def test_result_of_an_unknown_name_says_the_nearest_one(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn -a -o training\ntorch.ones(2) + 1")
    unknown = notebook.run("%djinn result trianing")
    assert unknown.error == "OptionError"
    assert "'trianing' is neither a handle nor the job of one (did you mean 'training'?)" in unknown.traceback


def test_push_uploads_so_that_the_next_cell_sends_little(notebook: NotebookKernel) -> None:
    notebook.run("model = torch.nn.Linear(512, 512)\ninputs = torch.randn(64, 512)\nkept = model, inputs")
    notebook.run("expected = model(inputs).detach()")
    said = notebook.run("%djinn push model inputs").text
    assert re.search(r"pushed model: 2 tensors, 1\.0 MiB \(1\.0 MiB sent\) in .+ m?s", said)
    assert re.search(r"pushed inputs: 1 tensor, 128\.0 KiB \(128\.\d KiB sent\) in .+ m?s", said)
    assert notebook.run("kept[0] is model, kept[1] is inputs, type(model.weight).__name__").values == [
        "(True, True, 'Parameter')"
    ]
    assert notebook.run("%%djinn\ntorch.allclose(model(inputs), expected)").values == ["True"]
    sent = notebook.run("get_ipython().run_line_magic('djinn', 'last').report.bytes_up").values[0]
    assert int(sent) < 2**18  # of these the plain tensor ``expected`` is 128 KiB
    again = notebook.run("%djinn push model").text
    assert re.search(r"2 tensors, 1\.0 MiB \(\d+ B sent\)", again)
    assert notebook.run("%djinn pull model\ntorch.equal(model(inputs).detach(), expected)").values == ["True"]


def test_push_leaves_shared_memory_alone_and_says_so(notebook: NotebookKernel) -> None:
    notebook.run("import numpy; array = numpy.ones(5, dtype='float32'); shared = torch.from_numpy(array)")
    assert "pushed nothing of shared" in notebook.run("%djinn push shared").text
    notebook.run("array[0] = 7")
    assert notebook.run("%%djinn\n(shared + 1).tolist()").values == ["[8.0, 2.0, 2.0, 2.0, 2.0]"]
    notebook.run("both = [shared, torch.ones(3)]")
    assert "1 tensor stayed plain" in notebook.run("%djinn push both").text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%djinn push", "needs the name of a variable"),
        ("%djinn push modle", "there is no variable 'modle' (did you mean 'model'?)"),
        ("%djinn push torch", "'torch' holds no tensor: it is of type module"),
        ("%djinn pull opne", "there is no variable 'opne'."),
        ("%djinn pull modle", "there is no variable 'modle' (did you mean 'model'?)"),
        ("%djinn sttus", "%djinn has no command 'sttus' (did you mean 'status'?)"),
        ("%djinn zzzzzz", "%djinn has no command 'zzzzzz'."),
        ("%%djinn --noblok\n1", "unrecognized arguments: --noblok (did you mean '--noblock'?)"),
        ("%%djinn --prioritty=LOW\n1", "--prioritty=LOW (did you mean '--priority'?)"),
        ("%%djinn -p resaerch_training\n1", "did you mean 'research_training'?"),
        ("%djinn_config --quiett", "unrecognized arguments: --quiett (did you mean '--quiet'?)"),
        ("%djinn report --htm x", "is not --html with a file"),
        ("%djinn report --html", "is not --html with a file"),
    ],
)
def test_misspelt_names_are_answered_with_the_nearest_one(
    notebook: NotebookKernel, line: str, said: str
) -> None:
    notebook.run("model = torch.nn.Linear(2, 2)")
    failed = notebook.run(line)
    assert failed.error in ("OptionError", "ProfileError")
    assert said in failed.traceback


def test_new_options_and_names_are_completed_and_explained(notebook: NotebookKernel) -> None:
    notebook.run("model = torch.nn.Linear(2, 2)\nmoment = 3")
    notebook.run("%%djinn -a -o training\ntorch.ones(2) + 1")
    assert "--noblock" in notebook.complete("%%djinn --nob")
    assert "--output" in notebook.complete("%%djinn -a --out")
    assert {"result", "push", "report"} <= set(notebook.complete("%djinn "))
    assert notebook.complete("%djinn push mo") == ["model"]
    assert notebook.complete("%djinn result tr") == ["training"]
    assert "--html" in notebook.complete("%djinn report --")
    pager = notebook.run("%%djinn?").pager
    assert "-a, --noblock" in pager
    assert "-o NAME, --output NAME" in pager


class Page(HTMLParser):
    """Tags, and what their attributes load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_html_report_is_one_safe_file_with_every_section(notebook: NotebookKernel, tmp_path: Path) -> None:
    file = tmp_path / "report of a cell.html"
    notebook.run("model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())")
    notebook.run(
        "%%djinn\ny = model(torch.ones(4, 8))\nif float(y.sum()) > 1e9:\n    '<script>alert(1)</script>'\n"
        "y.mean()  # <img src=x>"
    )
    assert f"wrote {file}" in notebook.run(f"%djinn report --html '{file}'").text
    text = file.read_text()
    page = Page(text)
    assert page.loaded == []
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert "url(" not in text
    assert "<script>alert(1)</script>" in page.words
    for wanted in (
        f"In [3] on {KIND}:",
        "Done",
        "Time by stage",
        "capture",
        "run",
        "Sequential.0",
        "Schedule",
    ):
        assert wanted in page.words
    for wanted in ("priority NORMAL", "Placement", "item (.item()", "cell end", "Device ran"):
        assert wanted in page.words
    assert "prefers-color-scheme: dark" in text


def test_html_report_of_a_failed_cell_has_its_error(notebook: NotebookKernel, tmp_path: Path) -> None:
    notebook.run("%%djinn -a\ntorch.ones(3)[torch.tensor([9])]")
    assert notebook.run(f"%djinn report --html {tmp_path}/failed.html").status == "ok"
    words = Page((tmp_path / "failed.html").read_text()).words
    assert "Failed" in words
    assert f"{OUT_OF_RANGE.__name__}: " in words
    assert "index 9 is out of bounds" in words
    nowhere = notebook.run(f"%djinn report --html {tmp_path}/missing/x.html")
    assert "cannot be written (No such file or directory)" in nowhere.traceback
