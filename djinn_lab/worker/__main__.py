"""``python -m djinn_lab.worker --fd N --device cpu:0 --memory-bytes B --threads T --store-directory S
--result-directory R``: a worker that is started by itself. Most are forked from a template."""

from __future__ import annotations

import argparse
import gc
import signal
import socket

from djinn_lab.protocol.compiling import INDUCTOR
from djinn_lab.protocol.template import WorkerOptions


def main() -> None:
    parser = argparse.ArgumentParser(prog="djinn_lab.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--store-directory", required=True)
    parser.add_argument("--result-directory", required=True)
    parser.add_argument("--host-bytes", type=int, default=0)
    parser.add_argument("--host-directory")
    parser.add_argument("--host-account")
    parser.add_argument("--host-row", type=int, default=0)
    parser.add_argument("--disk-bytes", type=int, default=0)
    parser.add_argument("--disk-directory")
    parser.add_argument("--link-bytes-per-second", type=float, default=0.0)
    parser.add_argument("--compiled-directory")
    parser.add_argument("--region-compiler", default=INDUCTOR)
    parser.add_argument("--not-confined", dest="confined", action="store_false")
    arguments = vars(parser.parse_args())
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in the terminal is for the pool, which then says shutdown
    connection = socket.socket(fileno=arguments.pop("fd"))
    from djinn_lab.worker.start import serve

    gc.freeze()  # what was imported stays; no collection has to look at it again
    serve(connection, WorkerOptions(**arguments))


if __name__ == "__main__":
    main()
