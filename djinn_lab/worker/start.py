"""Begins a worker's life in a process that has imported what it needs."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import tempfile
from pathlib import Path
from typing import Never

import torch

from djinn_lab.numerics import settle_kernels
from djinn_lab.protocol.isolation import SandboxLevel
from djinn_lab.protocol.template import WorkerOptions
from djinn_lab.worker import sandbox
from djinn_lab.worker.accelerator.device import begin
from djinn_lab.worker.compiled.libraries import loader
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker.heap import heap_limit
from djinn_lab.worker.host_account import HostAccount
from djinn_lab.worker.process import WorkerProcess
from djinn_lab.worker.tiers import TierLimits

SWITCH_INTERVAL_S = 0.0005
"""How long a copy or the pool's next message may wait for the interpreter while a program runs."""
log = logging.getLogger(__name__)


def serve(connection: socket.socket, options: WorkerOptions) -> Never:
    """Serve a pool over this connection, and end the process."""
    torch.set_num_threads(1)
    settle_kernels()
    torch.set_num_threads(options.threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if options.device.startswith("cpu"):
        _limit_address_space(options.memory_bytes)
    region_loader = loader(options.region_compiler)  # an installed package, which may lie anywhere
    host_account = HostAccount.open(options.host_account, options.host_row, options.host_bytes)
    level = _enter_sandbox(options)
    limits = TierLimits(
        options.host_bytes,
        _path(options.host_directory),
        options.disk_bytes,
        _path(options.disk_directory),
        options.link_bytes_per_second,
        host_account,
    )
    WorkerProcess(
        connection,
        options.device,
        options.memory_bytes,
        Path(options.store_directory),
        Path(options.result_directory),
        limits,
        level,
        _path(options.compiled_directory),
        loader=region_loader,
    ).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and the interpreter takes half a second to take torch apart


def _enter_sandbox(options: WorkerOptions) -> SandboxLevel:
    """Give up what a worker does not need. The driver of a device begins before: it needs more for that."""
    find_executor()
    own = [
        path for path in (_path(options.host_directory), _path(options.disk_directory)) if path is not None
    ]
    # No other directory is in reach, and parts of torch look for one when they are imported.
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = options.result_directory
    reach = sandbox.Reach(
        tuple(own),
        Path(options.store_directory),
        Path(options.result_directory),
        _path(options.compiled_directory),
    )
    if options.device.startswith("cpu"):
        return sandbox.enter(reach)
    if not options.confined:
        return sandbox.enter_process_only()
    begin(torch.device(options.device))
    return sandbox.enter_beside_driver(reach)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _limit_address_space(memory_bytes: int) -> None:
    """A backstop behind the account: memory that ops take inside (workspaces), what the heap keeps, and its
    holes are bounded by the kernel."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError as error:
        log.warning("no limit of the worker's memory beside the account: its size cannot be read: %s", error)
        return
    data = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    limit = data + heap_limit(memory_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
