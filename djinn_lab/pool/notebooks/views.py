"""Batch notebooks as the API takes and shows them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence

import msgspec

from djinn_lab.jobs.batch import BatchNotebook, NotebookExplainer, Notebooks, parameters
from djinn_lab.pool.authentication import Role, User
from djinn_lab.protocol.rest.notebooks import NewNotebook, NotebookView

ADDED_LATER = ("after_count", "after_timeout_s", "parameters", "anyway", "target", "tolerates")
"""Left out of the digest where nothing was asked, so that keys of earlier submissions hold."""


def notebook_views(
    notebooks: Notebooks, chosen: Sequence[BatchNotebook], now_s: float, user: User
) -> list[NotebookView]:
    """Show chosen notebooks as ``user`` may see them."""
    explainer = NotebookExplainer(notebooks, now_s, _clock_time)
    return [_view(one, explainer, user.name == one.user or user.role >= Role.ADMIN) for one in chosen]


def _view(notebook: BatchNotebook, explainer: NotebookExplainer, own: bool) -> NotebookView:
    attempts_max = notebook.restart.attempts_max
    return NotebookView(
        job=notebook.job,
        user=notebook.user,
        name=notebook.name,
        priority=notebook.priority,
        state=notebook.state.value,
        reason=explainer.sentence(notebook.job),
        position=explainer.positions.get(notebook.job),
        cell=notebook.cell,
        cells=notebook.cells,
        attempts=notebook.attempts,
        attempts_max=None if math.isinf(attempts_max) else int(attempts_max),
        restart=notebook.restart.policy.value,
        after=notebook.waits_for,
        timeout_s=notebook.timeout_s,
        deadline_at=notebook.deadline_s,
        submitted_at=notebook.submitted_at_s,
        started_at=notebook.started_at_s,
        finished_at=notebook.finished_at_s,
        retry_at=notebook.retry_at_s,
        checkpoints=notebook.checkpoints,
        parameters=notebook.parameters if own else {},
        predicted=notebook.predicted,
        use=notebook.use,
        target=notebook.target,
        tolerates=notebook.tolerates,
    )


def problem_of(document: bytes) -> str | None:
    """Why this is no notebook that a Python kernel can run, None when it is one. A full check of the format
    is left to the runner."""
    try:
        found = msgspec.json.decode(document, type=_NotebookDocument)
    except msgspec.DecodeError as error:
        return f"It is not a notebook: {error}."
    if found.nbformat != 4:
        return f"It is in notebook format {found.nbformat}; save it again as format 4."
    language = found.metadata.language_info.name or found.metadata.kernelspec.language
    if language and language.lower() != "python":
        return f"It is for a kernel of the language {language}; the pool runs Python notebooks."
    if not any(cell.cell_type == "code" and "".join(cell.source).strip() for cell in found.cells):
        return "It has no code cells, so there is nothing to run."
    return None


def parameterised(document: bytes, given: dict[str, object]) -> bytes:
    """Make the document that is run. Raises ValueError for parameters that it does not take."""
    if not given:
        return document
    found = msgspec.json.decode(document)
    problem = parameters.problem_with(given, parameters.declared(found))
    if problem is not None:
        raise ValueError(problem)
    return msgspec.json.encode(parameters.with_parameters(found, given))


def content_of(document: bytes, given: dict[str, object]) -> str:
    """Digest code and parameters: equal for the same content, whatever its name."""
    code = [
        "".join(cell.source)
        for cell in msgspec.json.decode(document, type=_NotebookDocument).cells
        if cell.cell_type == "code"
    ]
    return hashlib.sha256(msgspec.json.encode([code, given], order="sorted")).hexdigest()


def digest_of(new: NewNotebook) -> str:
    """Digest all that decides what will run, without a notebook's outputs, and without ids of cells, which
    are made anew when an old notebook is read."""
    document = msgspec.json.decode(new.notebook)
    for cell in document["cells"]:
        for name in ("id", "outputs", "execution_count"):
            cell.pop(name, None)
    options = {name: value for name, value in msgspec.structs.asdict(new).items() if name != "notebook"}
    for name in ADDED_LATER:
        if not options[name]:
            del options[name]
    asked = msgspec.json.encode([document, options], order="sorted")
    return hashlib.sha256(asked).hexdigest()


class _Cell(msgspec.Struct, frozen=True):
    cell_type: str
    source: str | list[str] = ""


class _Language(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(msgspec.Struct, frozen=True):
    language: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    language_info: _Language = _Language()
    kernelspec: _Spec = _Spec()


class _NotebookDocument(msgspec.Struct, frozen=True):
    nbformat: int
    cells: list[_Cell] = []
    metadata: _Metadata = _Metadata()


def _clock_time(at_s: float) -> str:
    """Show a time with seconds, since a backoff may be short, and with the day when it is not today."""
    moment = time.localtime(at_s)
    today = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", moment)
