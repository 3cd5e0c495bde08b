"""``python -m djinn_lab.worker --fd N --device cpu:0 --memory-bytes B --threads T --store-directory S
--result-directory R``"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
from pathlib import Path

SWITCH_INTERVAL_S = 0.0005
"""How long a copy or the pool's next message may wait for the interpreter while a program runs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="djinn_lab.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--store-directory", type=Path, required=True)
    parser.add_argument("--result-directory", type=Path, required=True)
    parser.add_argument("--host-bytes", type=int, default=0)
    parser.add_argument("--host-directory", type=Path)
    parser.add_argument("--disk-bytes", type=int, default=0)
    parser.add_argument("--disk-directory", type=Path)
    parser.add_argument("--link-bytes-per-second", type=float, default=0.0)
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in the terminal is for the pool, which then says shutdown
    import torch

    from djinn_lab.worker.process import WorkerProcess, limit_address_space
    from djinn_lab.worker.tiers import TierLimits

    gc.freeze()  # what was imported stays; no collection has to look at it again
    torch.set_num_threads(arguments.threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if arguments.device.startswith("cpu"):
        limit_address_space(arguments.memory_bytes)
    connection = socket.socket(fileno=arguments.fd)
    limits = TierLimits(
        arguments.host_bytes,
        arguments.host_directory,
        arguments.disk_bytes,
        arguments.disk_directory,
        arguments.link_bytes_per_second,
    )
    WorkerProcess(
        connection,
        arguments.device,
        arguments.memory_bytes,
        arguments.store_directory,
        arguments.result_directory,
        limits,
    ).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and the interpreter takes half a second to take torch apart


if __name__ == "__main__":
    main()
