"""Traces by name or by file: which loader is meant is seen from the name or the file's columns."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from djinn_lab.simulator.queue.workload import Trace
from djinn_lab.simulator.traces.gpu_clusters import PHILLY_CONTENDED, load_helios, load_itp, load_philly
from djinn_lab.simulator.traces.lines import NoTraces, open_text, traces_folder
from djinn_lab.simulator.traces.notebooks import CELLS, SESSIONS, load_cells, load_reservations
from djinn_lab.simulator.traces.openb import load_openb
from djinn_lab.simulator.traces.swf import load_swf
from djinn_lab.simulator.traces.synthetic import Synthetic

SYNTHETIC = "synthetic"
OPENB_NODES = "openb_node_list_gpu_node.csv"
NOTEBOOKS = "adobe_notebooks_2021"


def _philly(folder: Path, pools: str) -> Trace:
    folder = folder / "philly-adaptdl"
    only = PHILLY_CONTENDED if pools == "contended" else None
    return load_philly(folder / "philly_oct_nov_11vc.csv.gz", folder / f"pools_{pools}.json", only)


def _openb(folder: Path) -> Trace:
    folder = folder / "alibaba-openb-2023"
    return load_openb(folder / "openb_pod_list_default.csv.gz", folder / OPENB_NODES)


NAMED: Mapping[str, Callable[[Path], Trace]] = {
    "sdsc-sp2": lambda folder: load_swf(folder / "swf" / "SDSC-SP2-1998-4.2-cln.swf.gz"),
    "nasa-ipsc": lambda folder: load_swf(folder / "swf" / "NASA-iPSC-1993-3.1-cln.swf.gz"),
    "lcg": lambda folder: load_swf(folder / "swf" / "LCG.swf.gz"),
    "lublin-256": lambda folder: load_swf(folder / "swf" / "lublin_256.swf.gz"),
    "philly": lambda folder: _philly(folder, "full"),
    "philly-contended": lambda folder: _philly(folder, "contended"),
    "itp": lambda folder: load_itp(folder / "ms-itp-2021" / "itp_all.csv.gz"),
    "openb": _openb,
    "notebooks": lambda folder: load_cells(folder / NOTEBOOKS / CELLS),
    "notebooks-reserved": lambda folder: load_reservations(folder / NOTEBOOKS / SESSIONS),
}
"""Below the folder of public traces."""


def open_trace(name_or_path: str, folder: Path | None = None, pools: Path | None = None) -> Trace:
    """Open a trace by name or file; ``folder``: of public traces, for names. ``pools``: of a Philly list.
    Raises NoTraces."""
    try:
        return _open(name_or_path, folder, pools)
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise NoTraces(f"{name_or_path} cannot be read as a trace: {error}") from error


def _open(name_or_path: str, folder: Path | None, pools: Path | None) -> Trace:
    if name_or_path == SYNTHETIC:
        return Synthetic().trace()
    if name_or_path in NAMED:
        return NAMED[name_or_path](traces_folder(folder))
    path = Path(name_or_path)
    if ".swf" in path.suffixes:
        return load_swf(path)
    with open_text(path) as file:
        columns = set(file.readline().strip().split(","))
    if {"submit", "duration", "gpus", "vc"} <= columns:
        return load_philly(path, pools)
    if {"submission_time", "num_gpu", "cluster"} <= columns:
        return load_itp(path)
    if {"gpu_num", "submit_time", "vc"} <= columns:
        return load_helios(path)
    if {"gpu_milli", "gpu_spec", "creation_time"} <= columns:
        return load_openb(path, path.parent / OPENB_NODES)
    if {"session", "start_min", "duration_min", "gpus"} <= columns:
        return load_cells(path)
    if {"session", "start_min", "stop_min", "gpus"} <= columns:
        return load_reservations(path)
    names = ", ".join((*NAMED, SYNTHETIC))
    raise NoTraces(
        f"{path} has no format that is known (SWF, Philly, ITP, Helios, openb, notebooks), and is none of "
        f"{names}"
    )
