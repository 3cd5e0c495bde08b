"""``%%djinn --noblock``: cells that return before the pool has computed them, and their handles."""

from __future__ import annotations

import pytest
from device_kind import KIND, OUT_OF_RANGE
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest, wait_for

pytestmark = pytest.mark.processes

LONG = "x = torch.eye(300)\nw = torch.eye(300)\nfor _ in range({ops}):\n    x = x @ w\nx.sum()"
ENDLESS = LONG.format(ops=60000)


def test_noblock_cell_returns_before_it_is_computed_and_its_handle_has_the_result(
    notebook: NotebookKernel,
) -> None:
    sent = notebook.run(f"%%djinn -a -o training\n{LONG.format(ops=3000)}")
    assert sent.status == "ok", sent.traceback
    assert sent.values == []
    assert sent.shown[0].startswith("<In [2]: ")
    assert notebook.run("training.ready, training.progress.state != 'DONE'").values == ["(False, True)"]
    assert notebook.run("training.get()").values == ["tensor(300.)"]
    assert notebook.run("training.ready, training.successful").values == ["(True, True)"]
    assert notebook.run("training.progress.ops_done == training.progress.ops_total > 3000").values == ["True"]
    assert "In [2]: 30" in notebook.run("print(training.report)").text
    assert notebook.run("training").values[0].startswith(f"<In [2]: DONE, on {KIND}:")


def test_noblock_cell_is_waited_for_by_the_next_use_of_the_session(notebook: NotebookKernel) -> None:
    notebook.run(f"%%djinn -a -o first\n{LONG.format(ops=1500)}")
    assert notebook.run("float(x[0, 0])").values == ["1.0"]
    assert notebook.run("first.progress.state").values == ["'DONE'"]
    notebook.run(f"%%djinn -a -o second\n{LONG.format(ops=1500)}")
    assert notebook.run("%%djinn\n(x + 1).sum()").values == ["tensor(90300.)"]
    assert notebook.run("second.progress.state").values == ["'DONE'"]
    assert "preceding" in notebook.run("%djinn report").text


def test_noblock_output_of_the_cell_says_at_last_how_it_ended(notebook: NotebookKernel) -> None:
    notebook.run(f"%%djinn -a -o handle\n{LONG.format(ops=1500)}")
    waited = notebook.run("handle.wait()")
    assert waited.values == ["True"]
    assert waited.shown[-1].startswith(f"<In [2]: DONE, on {KIND}:")


def test_progress_of_a_noblock_cell_is_displayed_only_where_it_is_waited_for(
    notebook: NotebookKernel,
) -> None:
    notebook.run(f"%%djinn -a -o handle --progress-after 0\n{LONG.format(ops=1500)}")
    looked = notebook.run("while not handle.ready: seen = handle.progress, repr(handle)\nseen[0].state")
    assert (looked.values, looked.shown) == (["'RUNNING'"], [])
    notebook.run(f"%%djinn -a -o handle --progress-after 0\n{LONG.format(ops=1500)}")
    assert any("ops" in line for line in notebook.run("handle.get()").shown)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-o handle", "-o handle names the handle of a cell that is not waited for"),
        ("-a -o 3x", "'3x' is not the name of a variable"),
        ("-a -o for", "'for' is not the name of a variable"),
        ("-a --verify", "--verify compares results when the cell ends"),
        ("--noblock --dry-run", "--dry-run runs nothing"),
    ],
)
def test_noblock_with_options_that_do_not_fit_is_one_clear_message(
    notebook: NotebookKernel, options: str, said: str
) -> None:
    failed = notebook.run(f"%%djinn {options}\ntorch.ones(2) + 1")
    assert failed.error == "OptionError"
    assert said in failed.traceback


def test_error_of_a_noblock_cell_is_raised_by_its_handle_each_time_and_not_again_by_the_session(
    notebook: NotebookKernel,
) -> None:
    bad = "%%djinn -a -o handle\nkept = torch.ones(3) + 0\n\nbad = kept[torch.tensor([9])]\nbad"
    assert notebook.run(bad).status == "ok"
    for _ in range(2):
        failed = notebook.run("handle.get()")
        assert failed.error == OUT_OF_RANGE.__name__
        assert "recorded at In [2], line 4" in failed.traceback
    assert notebook.run("handle.successful").values == ["False"]
    assert notebook.run("%%djinn\nkept + 1").values == ["tensor([2., 2., 2.])"]
    assert notebook.run("bad").error == "ValueLost"


@pytest.mark.parametrize("use", ["%%djinn\nkept + 1", "kept.tolist()", "%djinn pull kept"])
def test_error_of_a_noblock_cell_is_raised_once_where_the_session_is_used_next(
    notebook: NotebookKernel, use: str
) -> None:
    notebook.run("%%djinn -a\nkept = torch.ones(3) + 0\nbad = kept[torch.tensor([9])]")
    failed = notebook.run(use)
    assert failed.error == OUT_OF_RANGE.__name__
    assert "an error of In [2]" in failed.traceback
    assert notebook.run(use).status == "ok"


def test_error_of_a_noblock_cell_that_was_only_waited_for_is_raised_by_the_next_cell(
    notebook: NotebookKernel,
) -> None:
    notebook.run("%%djinn -a -o handle\nkept = torch.ones(3) + 0\nbad = kept[torch.tensor([9])]")
    assert notebook.run("handle.wait()").values == ["True"]
    assert notebook.run("%%djinn\nkept + 1").error == OUT_OF_RANGE.__name__
    assert notebook.run("%%djinn\nkept + 1").status == "ok"


def test_errors_of_the_cells_own_python_are_raised_by_the_cell(notebook: NotebookKernel) -> None:
    failed = notebook.run("%%djinn -a -o handle\nmade = torch.ones(2) + 1\n1 / 0")
    assert failed.error == "ZeroDivisionError"
    assert notebook.run("made.tolist(), 'handle' in globals()").values == ["([2.0, 2.0], False)"]


def test_two_noblock_cells_run_in_their_order(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn\ntotal = torch.zeros(300, 300)")
    notebook.run(f"%%djinn -a -o one\n{LONG.format(ops=1500)}\ntotal += x\ntotal[0, 0]")
    notebook.run("%%djinn -a -o two\ntotal *= 10\ntotal[0, 0]")
    assert notebook.run("one.progress.state").values == ["'DONE'"]
    assert notebook.run("two.get(), one.get()").values == ["(tensor(10.), tensor(10.))"]


def test_cancelled_noblock_cell_leaves_earlier_values_and_the_next_cell_runs(
    notebook: NotebookKernel, pool: PoolUnderTest
) -> None:
    notebook.run("%%djinn\nkept = torch.ones(2) + 1")
    notebook.run(f"%%djinn -a -o handle\n{ENDLESS}")
    job = pool.wait_for_job(state="RUNNING")
    assert notebook.run("handle.get(0.01)").error == "TimeoutError"
    assert notebook.run("handle.wait(0.01)").values == ["False"]
    assert notebook.run("handle.successful").error == "UserError"
    assert notebook.run("handle.cancel(), handle.cancel()").values == ["(True, False)"]
    assert pool.rest.job(job.job).state == "CANCELLED"
    assert notebook.run("handle.get()").error == "CellCancelled"
    assert notebook.run("%%djinn\nkept + 1").values == ["tensor([3., 3.])"]
    assert notebook.run("x").error == "ValueLost"


@pytest.mark.parametrize("wait", ["handle.get()", "handle.wait(60)", "x[0]", "%%djinn\nx + 1"])
def test_stop_button_while_a_noblock_cell_is_waited_for_cancels_it(
    notebook: NotebookKernel, pool: PoolUnderTest, wait: str
) -> None:
    notebook.run(f"%%djinn -a -o handle\n{ENDLESS}")
    job = pool.wait_for_job(state="RUNNING")
    waiting = notebook.send(wait)
    queued = notebook.send("late = 1")
    wait_for(lambda: pool.rest.job(job.job).ops_done > 0)
    notebook.interrupt()
    assert notebook.result(waiting).error in ("CellCancelled", "KeyboardInterrupt")
    assert notebook.result(queued).status == "aborted"
    assert notebook.run("handle.progress.state").values == ["'CANCELLED'"]
    assert pool.rest.job(job.job).state == "CANCELLED"
    assert notebook.run("%%djinn\n(torch.ones(2) + 1).tolist()").values == ["[2.0, 2.0]"]


def test_kernel_that_captures_every_cell_waits_at_the_first_op(pool: PoolUnderTest) -> None:
    with NotebookKernel({**pool.environment, "DJINN_KERNEL": "1"}) as kernel:
        kernel.load()
        kernel.run(f"%%djinn -a -o handle\n{ENDLESS}")
        pool.wait_for_job(state="RUNNING")
        for plain in ("1 + 1", "raise KeyError", "raise KeyboardInterrupt", "handle.progress"):
            kernel.run(plain)
        assert kernel.run("handle.ready").values == ["False"]
        assert kernel.run("handle.cancel()").values == ["True"]
        kernel.run(f"%%djinn -a -o handle\n{LONG.format(ops=500)}")
        assert kernel.run("(x + 1)[0, 0]").values == ["tensor(2.)"]
        assert kernel.run("handle.progress.state").values == ["'DONE'"]


@pytest.mark.parametrize(
    ("options", "displayed"), [("--verify", "verified: 1 tensor"), ("--dry-run", "dry run")]
)
def test_checked_cell_after_a_noblock_cell_waits_for_it(
    notebook: NotebookKernel, options: str, displayed: str
) -> None:
    notebook.run(f"%%djinn -a -o handle\n{LONG.format(ops=500)}")
    assert displayed in notebook.run(f"%%djinn {options}\nz = x + 1").text
    assert notebook.run("handle.progress.state").values == ["'DONE'"]


def test_report_and_explanation_of_a_noblock_cell_are_printed_where_it_is_waited_for(
    notebook: NotebookKernel,
) -> None:
    sent = notebook.run("%%djinn -a -o handle --report --explain\ntorch.ones(2) + 1")
    assert sent.text == ""
    waited = notebook.run("handle.get()")
    assert "In [2] ran as job" in waited.text
    assert "stages: capture" in waited.text
    assert notebook.run("handle.get()").text == ""
    notebook.run("plain = torch.zeros(2); view = plain[:1]")
    written = notebook.run("%%djinn -a -o handle --report\nplain += torch.ones(2)\nplain.sum()")
    assert "stages: capture" in written.text  # the view is up to date, so nothing is pending
    assert notebook.run("plain.tolist(), handle.get()").values == ["([1.0, 1.0], tensor(2.))"]


def test_quiet_noblock_cell_and_one_that_ends_with_a_semicolon_display_nothing(
    notebook: NotebookKernel,
) -> None:
    assert notebook.run("%%djinn -a -o handle --quiet\ntorch.ones(2) + 1").shown == []
    assert notebook.run("%%djinn -a -o handle\ntorch.ones(2) + 1;").shown == []
    assert notebook.run("handle.get()").values == ["tensor([2., 2.])"]


def test_strict_noblock_cell_may_not_wait_in_the_middle(notebook: NotebookKernel) -> None:
    assert notebook.run("%%djinn -a --strict\nfloat(torch.ones(2).sum())").error == "StrictError"
    middle = notebook.run("%%djinn -a -o handle\ny = torch.ones(2) + 1\nprint(float(y.sum()))\ny * 2")
    assert middle.text == "4.0\n"
    assert notebook.run("handle.get()").values == ["tensor([4., 4.])"]


def test_restarted_kernel_stops_its_noblock_cell(own_notebook: NotebookKernel, pool: PoolUnderTest) -> None:
    own_notebook.run(f"%%djinn -a\n{ENDLESS}")
    job = pool.wait_for_job(state="RUNNING")
    own_notebook.restart()
    assert wait_for(lambda: pool.rest.job(job.job).state == "CANCELLED")
