"""The result of a simulation as a file, for the dashboard and for later. JSON; the same run writes the same
bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from djinn_lab.errors import UserError
from djinn_lab.simulator.queue.run import QueueRun
from djinn_lab.simulator.queue.settings import QueueSettings
from djinn_lab.simulator.queue.workload import BrokenLine

FORMAT = "djinn-lab queue simulation 1"
BROKEN_KEPT = 20
FILE_VARIABLE = "DJINN_SIMULATION"
"""Path of a result that the dashboard shows by itself; ``djinn-lab dashboard --simulation`` sets it."""


class QueueResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one simulation; ``runs``: one for each policy. ``broken``: lines of the trace that could
    not be understood, the first of them with their reasons. ``left_out``: lines that are no work."""

    format: str = FORMAT
    trace: str
    nodes: dict[str, int]
    settings: QueueSettings
    broken: int
    broken_lines: tuple[BrokenLine, ...]
    left_out: int
    runs: tuple[QueueRun, ...]


def result_of(
    trace: str,
    nodes: dict[str, int],
    settings: QueueSettings,
    runs: Sequence[QueueRun],
    broken: Sequence[BrokenLine] = (),
    left_out: int = 0,
) -> QueueResult:
    """Collect runs into a result; ``nodes``: devices by pool."""
    return QueueResult(
        trace=trace,
        nodes=nodes,
        settings=settings,
        broken=len(broken),
        broken_lines=tuple(broken[:BROKEN_KEPT]),
        left_out=left_out,
        runs=tuple(runs),
    )


def write_result(path: Path, result: QueueResult) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", "Name another --out FILE.") from error


def read_result(path: Path) -> QueueResult:
    """Read a result file; raises UserError when it is no such file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    return parse_result(content, str(path))


def parse_result(content: bytes, name: str) -> QueueResult:
    """Parse the bytes of a result file; ``name``: of the file, for messages. Raises UserError when it is no
    such file."""
    advice = "djinn-lab simulate TRACE --out FILE writes one."
    try:
        result = msgspec.json.decode(content, type=QueueResult)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{name} is not a result of a queue simulation: {error}", advice) from error
    if result.format != FORMAT:
        raise UserError(f"{name} has the format {result.format!r}; this version reads {FORMAT!r}.", advice)
    return result
