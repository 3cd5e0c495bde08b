"""``%%djinn`` in a real kernel, as a front end uses it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from device_kind import KIND, OUT_OF_RANGE
from notebook_kernel import NotebookKernel, TakeKernels
from real_pool import PoolUnderTest, wait_for

pytestmark = pytest.mark.processes

LONG = (
    "%%djinn --progress-after 0\nx = torch.eye(400)\nw = torch.eye(400)\nfor _ in range(4000):\n    x = x @ w"
)
WAITS_S = "djinn_lab.client.cell.RECORDED_TIMEOUT_S"
"""So long a stopped cell waits for what it had recorded."""


@contextmanager
def hasty(*kernels: NotebookKernel) -> Iterator[None]:
    """Let stopped cells wait a moment for what they had recorded."""
    for kernel in kernels:
        set_up = f"import djinn_lab.client.cell\nusual, {WAITS_S} = {WAITS_S}, 0.1"
        assert kernel.run(set_up).status == "ok"
    yield
    for kernel in kernels:
        assert kernel.run(f"{WAITS_S} = usual").status == "ok"


def test_a_cell_behaves_as_a_plain_one(notebook: NotebookKernel) -> None:
    assert notebook.run("%%djinn\ny = torch.ones(2) + 1\ny").values == ["tensor([2., 2.])"]
    assert notebook.run("y * 2").values == ["tensor([4., 4.])"]
    assert notebook.run("%%djinn\ny * 3;").values == []
    assert notebook.run("%%djinn\nimport asyncio\nawait asyncio.sleep(0)\nz = y + 1").status == "ok"
    assert notebook.run("float(z.sum())").values == ["6.0"]
    assert notebook.run("%%djinn\nfrom __future__ import annotations\nq: Unknown = 1\nq").values == ["1"]
    assert notebook.run("%%djinn").status == "ok"
    nested = notebook.run("%%capture said\n%%djinn\nprint(y.sum().item())")
    assert nested.status == "ok", nested.traceback


@pytest.mark.parametrize("magic", ["%%time", "%%timeit -n 1 -r 1", "%%capture said", "%%prun -q"])
def test_a_cell_is_captured_above_and_beneath_another_magic(magic: str, notebook: NotebookKernel) -> None:
    notebook.run("import djinn_lab, torch")
    code = "y = torch.ones(2) + 1\nkept = [djinn_lab.is_lazy(y), y.sum().item()]"
    in_function = code.replace("kept =", "globals()['kept'] =")
    for head in (f"%%djinn --quiet\n{magic}", f"{magic}\n%%djinn --quiet"):
        notebook.run("kept = None")
        ran = notebook.run(f"{head}\n{in_function}")
        assert ran.status == "ok", ran.traceback
        assert notebook.run("kept").values == ["[True, 4.0]"]


def test_a_magic_that_does_not_run_python_is_refused_beneath(notebook: NotebookKernel) -> None:
    refused = notebook.run("%%djinn\n%%bash\necho hi")
    assert "Leave %%djinn out" in refused.text
    assert "hi" not in refused.text.split()


def test_cells_are_captured_after_all_names_were_reset(notebook: NotebookKernel) -> None:
    assert notebook.run("%reset -f").status == "ok"
    again = notebook.run("%%djinn\nimport torch\ny = torch.ones(2) + 1\ny")
    assert again.values == ["tensor([2., 2.])"], again.traceback
    within = notebook.run("%%djinn\n%reset -f\nimport torch\nz = torch.ones(2) * 3\nz")
    assert within.values == ["tensor([3., 3.])"], within.traceback
    assert notebook.run("%%djinn\n%reset -f").status == "ok"
    assert notebook.run("%%djinn\nimport torch\nfloat(torch.ones(2).sum())").values == ["2.0"]


def test_a_cell_stopped_while_it_was_recorded_is_the_last_one(notebook: NotebookKernel) -> None:
    assert notebook.run(f"%%djinn -t {KIND}:9\ntorch.ones(2) + 1").error == "Refused"
    loop = "w = torch.randn(600, 600)\nfor _ in range(100_000):\n    w = (w @ w).tanh()"
    assert notebook.run(f"%%djinn --timeout 1s --progress-after -1\n{loop}").error == "CellCancelled"
    assert re.search(rf"[1-9]\d* ops on {KIND}", notebook.run("%djinn report").text)
    assert "2048 nodes" in notebook.run("%djinn graph").shown[0]


def test_a_shape_error_is_raised_at_the_users_line(notebook: NotebookKernel) -> None:
    failed = notebook.run("%%djinn\na = torch.ones(2, 3)\nb = torch.ones(4, 5)\nc = a @ b")
    assert failed.error == "RuntimeError"
    assert "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)" in failed.traceback
    assert (
        "c = a" in failed.traceback.replace("\x1b[39m", "").replace("\x1b[49m", "") or "4" in failed.traceback
    )
    assert "djinn_lab/capture/inference" not in failed.traceback
    assert notebook.run("a.sum().item()").values == ["6.0"]


def test_a_worker_error_shows_the_cells_code_and_leaves_out_the_workers_frames(
    notebook: NotebookKernel,
) -> None:
    failed = notebook.run("%%djinn\nkept = torch.ones(3) + 0\n\nbad = kept[torch.tensor([9])]")
    assert failed.error == OUT_OF_RANGE.__name__
    assert "line 4" in failed.traceback
    assert "----> 4 bad = kept[torch.tensor([9])]" in failed.traceback
    assert "interpreter.py" not in failed.traceback
    assert notebook.run("kept.tolist()").values == ["[1.0, 1.0, 1.0]"]


def test_options_help_completion_and_bad_options(notebook: NotebookKernel) -> None:
    assert notebook.run("%%djinn --nonsense\n1").error == "OptionError"
    wrong = notebook.run("%%djinn --priority urgent\n1")
    assert "CRITICAL" in wrong.traceback
    assert "Traceback" not in wrong.traceback
    assert "--priority" in notebook.complete("%%djinn --pri")
    assert "SCAVENGER" in notebook.complete("%%djinn --priority SC")
    assert "status" in notebook.complete("%djinn st")
    assert "--progress-after" in notebook.run("%%djinn?").pager
    assert notebook.run("%djinn_config --priority low").status == "ok"
    assert "LOW" in notebook.run("%djinn_config").text


def test_line_commands(notebook: NotebookKernel) -> None:
    notebook.run("model = torch.nn.Linear(3, 2)")
    notebook.run("%%djinn\ny = model(torch.ones(1, 3))")
    assert f"{KIND}:0" in notebook.run("%djinn status").text
    assert "done" in notebook.run("%djinn jobs").values[0]
    assert (
        "aten.addmm" in notebook.run("%djinn schedule").shown[0]
        or "peak" in notebook.run("%djinn schedule").shown[0]
    )
    assert "nodes" in notebook.run("%djinn graph").shown[0]
    assert "capture" in notebook.run("%djinn report").text
    assert "http://127.0.0.1:" in notebook.run("%djinn dashboard").text
    assert notebook.run("%djinn pull model\ntype(model.weight).__name__").values == ["'Parameter'"]
    assert notebook.run("%djinn pull nothing").error == "OptionError"
    assert "'torch' holds no tensor: it is of type module" in notebook.run("%djinn pull torch").traceback
    assert "has no command" in notebook.run("%djinn sing").traceback


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("signal IO_WAIT soon", "--resume-in takes seconds"),
        ("memory all", "%djinn memory does not take 'all'"),
        ("why 'a", "No closing quotation"),
        ("why zzz", "Ids are listed by"),
    ],
)
def test_line_command_with_bad_words_is_one_clear_message(
    notebook: NotebookKernel, line: str, said: str
) -> None:
    done = notebook.run(f"%djinn {line}")
    assert done.error in ("OptionError", "PoolError")
    assert said in done.traceback
    assert len(done.traceback.splitlines()) <= 2


def test_a_variable_inspector_triggers_no_work(notebook: NotebookKernel, pool: PoolUnderTest) -> None:
    notebook.run("%%djinn\nx = torch.arange(3.0)")
    before = len(pool.rest.jobs(limit=1000))
    silent = notebook.run("print(repr(x))", silent=True)
    assert "shape=(3,)" in silent.text
    assert len(pool.rest.jobs(limit=1000)) == before


def test_stop_cancels_on_the_pool_and_the_next_cell_does_not_run(
    notebook: NotebookKernel, pool: PoolUnderTest
) -> None:
    notebook.run("kept = 1")
    running = notebook.send(LONG)
    queued = notebook.send("kept = 2")
    job = pool.wait_for_job(state="RUNNING")
    notebook.interrupt()
    stopped = notebook.result(running)
    assert stopped.error in ("CellCancelled", "KeyboardInterrupt")
    assert notebook.result(queued).status == "aborted"
    assert pool.rest.job(job.job).state == "CANCELLED"
    assert notebook.run("kept").values == ["1"]
    assert notebook.run("%%djinn\n(torch.ones(2) + 1).tolist()").values == ["[2.0, 2.0]"]


def test_stop_while_queued(notebooks: TakeKernels, pool: PoolUnderTest) -> None:
    kernels = notebooks(3)
    for kernel in kernels:
        kernel.run("%%djinn\nz = torch.ones(1)")
    with hasty(*kernels):
        messages = [kernel.send(LONG) for kernel in kernels]
        # The first two take turns on the device, so the one that waits may have run before.
        waiting = wait_for(lambda: next((job for job in pool.rest.jobs() if "behind" in job.reason), None))
        assert waiting.state in {"QUEUED", "PREEMPTED"}
        for kernel in kernels:
            kernel.interrupt()
        for kernel, message in zip(kernels, messages, strict=True):
            assert kernel.result(message).status == "error"
    assert wait_for(lambda: pool.rest.job(waiting.job).state == "CANCELLED")
    status = pool.rest.status()
    assert all(device.job is None for device in status.devices)


def test_progress_is_one_line_updated_in_place(notebook: NotebookKernel) -> None:
    done = notebook.run(LONG)
    assert done.status == "ok", done.traceback
    assert any("ops" in line for line in done.shown)
    assert re.match(rf"In \[\d+\] is done on {KIND}:\d, in ", done.shown[-1])
    assert notebook.run("%%djinn\ntorch.ones(1)").shown == []


def test_a_restarted_notebook_in_mid_run_frees_the_pool(
    own_notebook: NotebookKernel, pool: PoolUnderTest
) -> None:
    own_notebook.send(LONG)
    job = pool.wait_for_job(state="RUNNING")
    own_notebook.restart()
    assert wait_for(lambda: pool.rest.job(job.job).state == "CANCELLED")
    own_notebook.load()
    assert own_notebook.run("%%djinn\n(torch.ones(2) * 3).tolist()").values == ["[3.0, 3.0]"]


def test_two_notebooks_share_one_pool(notebooks: TakeKernels) -> None:
    one, two = notebooks(2)
    messages = [
        kernel.send(f"%%djinn\nx = torch.full((3,), {index}.0)\nx.tolist()")
        for index, kernel in enumerate((one, two))
    ]
    assert one.result(messages[0]).values == ["[0.0, 0.0, 0.0]"]
    assert two.result(messages[1]).values == ["[1.0, 1.0, 1.0]"]


def test_unload_takes_everything_away(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn\nx = torch.ones(1)")
    assert notebook.run("%unload_ext djinn_lab").status == "ok"
    assert notebook.run("%%djinn\n1").status == "error"
    assert notebook.run("1 + 1").values == ["2"]


def test_what_unloading_brought_home_is_used_again_after_loading(notebook: NotebookKernel) -> None:
    """Also by an optimizer, and by a gradient that was made before."""
    notebook.run(
        "%%djinn\ntorch.manual_seed(2)\nm = torch.nn.Linear(3, 2).cuda(); x = torch.ones(1, 3).cuda()\n"
        "opt = torch.optim.Adam(m.parameters()); m(x).sum().backward(); opt.step()"
    )
    assert notebook.run("%unload_ext djinn_lab\nplain = m(x).tolist()").status == "ok"
    assert notebook.run("%load_ext djinn_lab").status == "ok"
    again = notebook.run("%%djinn\nsame = m(x).tolist() == plain\nopt.step()\nsame, m(x).tolist() == plain")
    assert again.values == ["(True, False)"]


def test_jobs_are_found_by_a_text(notebook: NotebookKernel) -> None:
    notebook.run("%%djinn\ntorch.ones(2).sum().item()")
    assert "In [" in notebook.run("print(get_ipython().run_line_magic('djinn', 'jobs in ['))").text
    assert "no job" in notebook.run("print(get_ipython().run_line_magic('djinn', 'jobs no such text'))").text


def test_cancel_without_an_id_leaves_other_users_alone(notebooks: TakeKernels, pool: PoolUnderTest) -> None:
    notebook, other = notebooks(2)
    notebook.run("%%djinn\nx = torch.ones(1)")
    message = other.send(LONG)
    job = pool.wait_for_job(state="RUNNING")
    refused = notebook.run("%djinn cancel")
    assert "no job" in refused.traceback
    assert pool.rest.job(job.job).state == "RUNNING"
    assert job.job[:8] in notebook.run(f"%djinn cancel {job.job[:8]}").text
    assert other.result(message).status == "error"


def test_stop_works_at_any_moment(notebook: NotebookKernel, pool: PoolUnderTest) -> None:
    """Also between two ops, in a hook, or while a value is let go (where Python swallows what is raised)."""
    long = LONG.replace("range(4000)", "range(30000)")
    with hasty(notebook):
        for attempt in range(12):
            message = notebook.send(long)
            pool.wait_for_job(state="RUNNING")
            time.sleep(attempt * 0.013)
            notebook.interrupt()
            assert notebook.result(message).error in ("CellCancelled", "KeyboardInterrupt")
    assert wait_for(lambda: all(device.job is None for device in pool.rest.status().devices))
    assert notebook.run("%%djinn\n(torch.ones(2) + 1).tolist()").values == ["[2.0, 2.0]"]


def test_memory_says_where_this_notebooks_state_is(notebook: NotebookKernel) -> None:
    before = notebook.run("%djinn memory").text
    assert "holds nothing on the pool yet" in before
    assert notebook.run("%%djinn\nheld = torch.ones(2**20) * 2").status == "ok"
    text = notebook.run("%djinn memory").text
    assert re.search(rf"this notebook \(.+\): on {KIND}:\d, (idle|computing), 4\.0 MiB", text)
    assert f"{KIND}:0: " in text
    assert "wake-ups: " in text


def test_a_signal_is_answered_and_its_words_complete(notebook: NotebookKernel) -> None:
    assert notebook.run("%%djinn\nheld = torch.ones(4) * 2").status == "ok"
    assert notebook.run("%djinn signal io_wait --resume-in 20").text.startswith("accepted: ")
    assert "expected to compute again " in notebook.run("%djinn memory").text
    assert notebook.run("%djinn signal IO_WAIT --resume-in 9999999999").text.startswith("clipped: ")
    for rejected in ("SLEEP", "IO_WAIT --resume-in -5", "IO_WAIT --resume-in nan", "IO_WAIT --resume-in inf"):
        assert notebook.run(f"%djinn signal {rejected}").text.startswith("rejected: ")
    assert notebook.run("%djinn signal IO_WAIT --resume-in soon").error == "OptionError"
    assert notebook.run("%djinn signal").error == "OptionError"
    assert notebook.run("%djinn signal COMPUTE").text.startswith("accepted: ")
    assert {"IO_WAIT", "SOON", "COMPUTE"} <= set(notebook.complete("%djinn signal "))
    assert "IO_WAIT" in notebook.complete("%djinn signal io")
    assert "--resume-in" in notebook.complete("%djinn signal IO_WAIT --r")
    assert "memory" in notebook.complete("%djinn mem")
    assert "Show where this notebook's state is" in notebook.run("%djinn?").pager
