"""``%djinn COMMAND``: what the session and the pool are doing, asked from the notebook."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.client.cell import Cell
from djinn_lab.client.own_work import look_at_pool
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config.detection import detect
from djinn_lab.config.fields import did_you_mean
from djinn_lab.config.workload import joined_cells
from djinn_lab.errors import OptionError
from djinn_lab.magics.dashboard_process import URL
from djinn_lab.magics.inline_views import InlineView, graph_view, schedule_view
from djinn_lab.magics.memory_command import describe_memory
from djinn_lab.magics.notebook import Notebook
from djinn_lab.magics.profile_command import describe_profile, describe_switch
from djinn_lab.magics.report_page import report_page, sentence_of_times
from djinn_lab.magics.result_commands import push, result, variable_of_tensors
from djinn_lab.magics.text_table import aligned
from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.protocol.notebooks import ID_PREFIX
from djinn_lab.protocol.rest.status import DeviceView
from djinn_lab.srg.graph import SRG
from djinn_lab.units import format_bytes, format_seconds

Command = Callable[[Notebook, list[str]], object]
SIGNALS = ("IO_WAIT", "SOON", "COMPUTE")
ARRIVES_WITHIN_S = 1.0


def status(notebook: Notebook, words: list[str]) -> str:
    """Show the pool, its devices and this session."""
    client = notebook.pool
    found = client.status()
    lines = [
        f"pool {found.pool} at {client.url}, version {found.version}, up "
        f"{format_seconds(found.uptime_s)}, "
        f"{found.sessions} {'session' if found.sessions == 1 else 'sessions'}"
    ]
    return "\n".join([*lines, *map(_device_line, found.devices)])


def _device_line(device: DeviceView) -> str:
    used = f"{format_bytes(device.used_bytes)} of {format_bytes(device.memory_bytes)} used"
    return f"  {device.device}: {device.state}, {used}{device.reserved}, {device.queue_length} waiting"


def jobs(notebook: Notebook, words: list[str]) -> object:
    """Show the latest jobs of all users; with a text, those that have it in user, cell, notebook or id."""
    from djinn_lab.magics.jobs_widget import JobTable

    return JobTable(notebook.pool, " ".join(words))


def why(notebook: Notebook, words: list[str]) -> str:
    """Say why a job waits, by the first characters of its id (default: this notebook's own newest)."""
    pool = notebook.pool
    if not words:
        words = [_newest_job(notebook)]
    answer = pool.why(words[0])
    job = answer.job[: 12 if answer.job.startswith(ID_PREFIX) else 8]
    state = answer.state.lower()
    if answer.sentence.lower().startswith(state):
        return f"job {job}: {answer.sentence}"
    return f"job {job} is {state}: {answer.sentence}"


def _newest_job(notebook: Notebook) -> str:
    """Return this notebook's newest job. One that was sent just now may arrive after the question."""
    for last_look in (False, True):
        found = [row for row in notebook.pool.jobs(limit=1000) if row.session == notebook.own]
        cells = [row.job for row in found if not row.is_fetch]
        if cells:
            return cells[0]
        if last_look or all(handle.ready for handle in notebook.handles):
            break
        time.sleep(ARRIVES_WITHIN_S)
    raise OptionError("this notebook has no job yet.", "Run a cell that begins with %%djinn.")


def cancel(notebook: Notebook, words: list[str]) -> str:
    """Cancel a job by the first characters of its id (default: this notebook's own newest)."""
    if words and words[0].startswith(ID_PREFIX):
        stopped = notebook.pool.cancel_notebook(words[0])
        return f"notebook {stopped.job} ({stopped.name}) is {stopped.state}"
    active = [row for row in notebook.pool.jobs(limit=1000) if row.finished_at is None]
    if words:
        matching = [row for row in active if row.job.startswith(words[0])]
    else:
        matching = [row for row in active if row.session == notebook.own]
    if not matching and not words:
        raise OptionError(
            "this notebook has no job that is pending or running.", "Give the id of another one: %djinn jobs."
        )
    if not matching:
        raise OptionError(f"no job {words[0]!r} is pending or running.", "See %djinn jobs for the ids.")
    if words and len(matching) > 1:
        raise OptionError(f"{words[0]!r} matches {len(matching)} jobs.", "Give more characters of the id.")
    row = notebook.pool.cancel(matching[0].job)
    outcome = "is " + row.state if row.finished_at is not None else "stops after its current op"
    return f"job {row.job[:8]} ({row.cell}) {outcome}"


def last(notebook: Notebook, words: list[str]) -> Cell:
    """Return the last captured cell, with .report, .graph and .schedule; wait for it if it is pending."""
    cell = notebook.session.last_cell
    if cell is None:
        raise OptionError("no cell has been captured yet.", "Run a cell that begins with %%djinn.")
    cell.wait()
    return cell


def graph(notebook: Notebook, words: list[str]) -> InlineView:
    """Show the semantically rich graph of the last cell, in short."""
    cell = last(notebook, words)
    link = f"{URL}?page=srg&job={cell.report.job}" if cell.report.job is not None else ""
    parts = cell.report.parts
    which = f"the largest of the cell's {parts} parts:\n" if parts > 1 else ""
    shown = f"\nall of it (after %djinn dashboard): {link}" if link else ""
    text = f"{which}{summarise(cell.graph)}{shown}"
    return graph_view(cell.graph, text, link)


def summarise(srg: SRG) -> str:
    """Return counts and costs by phase and by module."""
    phases = Counter(node.phase for node in srg.nodes)
    flops: Counter[str] = Counter()
    for node in srg.nodes:
        flops[node.module_at(3) or "(outside modules)"] += node.flops
    total = sum(flops.values())
    lines = [
        f"{len(srg.nodes)} nodes, {len(srg.edges)} edges, {total / 1e9:.3f} GFLOP, hash "
        f"{srg.structural_hash[:12]}",
        "phases: " + ", ".join(f"{phase} {count}" for phase, count in phases.most_common()),
    ]
    lines += [f"  {count / 1e9:10.3f} GFLOP  {module}" for module, count in flops.most_common(8)]
    return "\n".join(lines)


def schedule(notebook: Notebook, words: list[str]) -> InlineView:
    """Show how the last cell was scheduled, and why."""
    cell = last(notebook, words)
    planned = cell.schedule
    text = "\n".join([*planned.explain(), sentence_of_times(planned, cell.report)])
    return schedule_view(planned, cell.graph, text)


def report(notebook: Notebook, words: list[str]) -> str:
    """Show where the last cell's time went, and why it was sent when it was; ``--html FILE``: as a page."""
    if not words:
        return str(last(notebook, words).report)
    if words[0] != "--html" or len(words) != 2:
        raise OptionError(
            f"%djinn report: {' '.join(words)!r} is not --html with a file.",
            "For instance: %djinn report --html report.html",
        )
    file = Path(words[1]).expanduser()
    try:
        file.write_text(report_page(notebook.session, last(notebook, [])), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"%djinn report: {file} cannot be written ({error.strerror}).") from None
    return f"wrote {file} ({format_bytes(file.stat().st_size)})"


def device(notebook: Notebook, words: list[str]) -> DeviceInfo:
    """Return the device of this session (before its first cell: the pool's first)."""
    devices = notebook.session.welcome.devices
    last_cell = notebook.session.last_cell
    bound = None if last_cell is None else last_cell.report.device
    return next((item for item in devices if item.device == bound), devices[0])


def pull(notebook: Notebook, words: list[str]) -> str:
    """Replace a variable's lazy tensors by plain ones (a module keeps its identity)."""
    if not words:
        raise OptionError("%djinn pull needs the name of a variable.", "For instance: %djinn pull model")
    done = []
    for name in words:
        value = variable_of_tensors(notebook, name)
        if isinstance(value, torch.nn.Module):
            notebook.session.pull(value)
        else:
            notebook.shell.user_ns[name] = notebook.session.fetch(value)
        done.append(name)
    return f"pulled {', '.join(done)}"


def the_session(notebook: Notebook, words: list[str]) -> Session:
    """Return the session itself, for djinn_lab.client.agents and code of your own."""
    return notebook.session


def memory(notebook: Notebook, words: list[str]) -> str:
    """Show where this notebook's state is (device, host, disk), what other sessions hold, wake-ups."""
    return describe_memory(notebook.pool.memory(), notebook.own)


def signal(notebook: Notebook, words: list[str]) -> str:
    """Send ``IO_WAIT [--resume-in SECONDS]``, ``SOON`` or ``COMPUTE``; print the pool's answer."""
    if not words:
        raise OptionError("%djinn signal needs a phase.", f"Use one of {', '.join(SIGNALS)}.")
    phase, *rest = words
    answered = notebook.session.signal_phase(phase.upper(), _resume_in_s(rest))
    return f"{answered.answer}: {answered.message}"


def _resume_in_s(words: list[str]) -> float | None:
    """Return the seconds of ``--resume-in SECONDS``, None without. Raises OptionError for other words."""
    if not words:
        return None
    try:
        option, text = words
        expected_s = float(text)
    except ValueError:
        option, expected_s = "", 0.0
    if option != "--resume-in":
        raise OptionError(
            f"%djinn signal cannot read {' '.join(words)!r}: --resume-in takes seconds.",
            "For instance: %djinn signal IO_WAIT --resume-in 30",
        )
    return expected_s


def dashboard(notebook: Notebook, words: list[str]) -> str:
    """Show the dashboard's address; start it when it does not run."""
    return notebook.dashboard.open()


def profile(notebook: Notebook, words: list[str]) -> str:
    """Show this notebook's profile, what it changed and which there are; with a NAME, take that one."""
    if words:
        notebook.configure(shlex.quote(f"--profile={words[0]}"))
    options = notebook.options("", "%djinn profile")
    session = notebook.session if notebook.has_session else None
    return describe_switch(options, session) if words else describe_profile(options, session)


def wizard(notebook: Notebook, words: list[str]) -> object:
    """Show the profile wizard, as widgets: it looks at this notebook's cells and at your last graphs."""
    from djinn_lab.magics.wizard_widget import wizard_widget

    pool, work = look_at_pool(lambda: notebook.pool if notebook.has_session else PoolClient.find())
    return wizard_widget(detect(lambda: pool), joined_cells(notebook.cells) if work is None else None, work)


def list_variables(notebook: Notebook, words: list[str]) -> str:
    """List the notebook's variables with tensors on the pool: tensors, and modules with some."""
    rows = []
    for name, value in notebook.shell.user_ns.items():
        if name.startswith("_"):
            continue
        if is_lazy(value):
            rows.append(f"  {name}: {tuple(value.shape)} {value.dtype}")
        elif isinstance(value, torch.nn.Module):
            tensors = [*value.parameters(), *value.buffers()]
            lazy = sum(map(is_lazy, tensors))
            if lazy:
                rows.append(f"  {name}: {type(value).__name__}, {lazy} of {len(tensors)} tensors on the pool")
    return "\n".join(rows) or "no variable has tensors on the pool"


def show_help(notebook: Notebook, words: list[str]) -> str:
    """List the commands. (``%djinn?`` says more of each.)"""
    rows = [(name, (command.__doc__ or "").partition("\n")[0]) for name, command in COMMANDS.items()]
    return "\n".join(aligned(rows))


COMMANDS: Mapping[str, Command] = {
    "status": status,
    "jobs": jobs,
    "why": why,
    "cancel": cancel,
    "graph": graph,
    "schedule": schedule,
    "report": report,
    "last": last,
    "device": device,
    "result": result,
    "pull": pull,
    "push": push,
    "memory": memory,
    "session": the_session,
    "signal": signal,
    "dashboard": dashboard,
    "profile": profile,
    "wizard": wizard,
    "variables": list_variables,
    "help": show_help,
}
HELP_WORDS = ("-h", "--help", "?")
WORDS_MAX = {
    "jobs": 1000,
    "why": 1,
    "cancel": 1,
    "profile": 1,
    "signal": 3,
    "pull": 1000,
    "push": 1000,
    "result": 1,
    "report": 1000,
}
"""How many words a command takes; the others take none."""


def run_command(notebook: Notebook, line: str) -> object:
    """Run a command; raise OptionError for an unknown one, and for words after a command that takes none."""
    try:
        words = shlex.split(line) or ["status"]
    except ValueError as error:
        raise OptionError(f"%djinn {line}: {error}.", "Close the quotation.") from None
    if words[0] in HELP_WORDS:
        words = ["help"]
    command = COMMANDS.get(words[0])
    if command is None:
        hint = did_you_mean(words[0], list(COMMANDS))
        raise OptionError(
            f"%djinn has no command {words[0]!r}{hint or '.'}", f"It has {', '.join(COMMANDS)}."
        )
    name, *rest = words
    extra = rest[WORDS_MAX.get(name, 0) :]
    if extra:
        raise OptionError(f"%djinn {name} does not take {extra[0]!r}.", "See %djinn? for the commands.")
    return command(notebook, rest)
