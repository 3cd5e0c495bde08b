"""Where public traces lie, and reading them line by line.

They are no part of this repository: the folder is an argument or the environment variable ``DJINN_TRACES``. A
line that cannot be understood is counted and shown; reading continues.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar

from djinn_lab.simulator.queue.workload import BrokenLine, Trace, TraceJob

VARIABLE = "DJINN_TRACES"
NODES_MAX = 100_000
"""Of a pool: more is a mistake, and would fill the memory."""


class NoTraces(Exception):
    """The folder or a file in it is missing; says which."""


def traces_folder(argument: Path | None = None) -> Path:
    """Return the folder of the public traces. Raises NoTraces."""
    named = argument or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    if named is None:
        raise NoTraces(f"no traces: set {VARIABLE} to the folder that holds them")
    if not named.is_dir():
        raise NoTraces(f"no traces: {named} is not a folder")
    return named


Row = Mapping[str, str]


Line = TypeVar("Line")


class LeftOut(Exception):
    """A valid row that describes no job to simulate."""


def open_text(path: Path) -> IO[str]:
    """Open a text file, plain or ``.gz``. Raises NoTraces."""
    if not path.is_file():
        raise NoTraces(f"no trace at {path}")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="")
    return path.open(newline="")


def rows(path: Path, columns: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """Yield the lines of a CSV file with their numbers. Raises NoTraces when a column is missing, or a line
    cannot be read."""
    with open_text(path) as file:
        reader = csv.DictReader(file)
        try:
            missing = sorted(set(columns) - set(reader.fieldnames or ()))
            if missing:
                raise NoTraces(f"{path} has no column {', '.join(missing)}")
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise NoTraces(f"{path}, line {reader.line_num}: {error}") from None


def collect(name: str, lines: Iterable[tuple[int, Line]], parse: Callable[[Line, int], TraceJob]) -> Trace:
    """``parse`` is given a line and the number of jobs before it; it raises ValueError for a broken line and
    LeftOut for one that is no work."""
    jobs: list[TraceJob] = []
    broken: list[BrokenLine] = []
    left_out = 0
    for number, line in lines:
        try:
            if isinstance(line, Mapping) and None in line.values():
                raise ValueError("too few columns")
            jobs.append(parse(line, len(jobs)))
        except LeftOut:
            left_out += 1
        except (ValueError, IndexError, TypeError, OverflowError, OSError) as error:
            broken.append(BrokenLine(number, f"{type(error).__name__}: {error}"))
    jobs.sort(key=lambda job: job.submit_s)
    return Trace(name, tuple(jobs), {}, tuple(broken), left_out)


def positive(text: str, what: str) -> float:
    """Return the number, which must be at least 0. Raises ValueError."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{what} is {text}")
    return value
