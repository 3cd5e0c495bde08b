"""``python -m djinn_lab.worker.template --fd N``: the process that workers are forked from.

It imports torch and warms up once, holds no secrets, and has one thread: a fork copies the calling thread
only, with every lock as it is. Messages: :mod:`djinn_lab.protocol.template`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from typing import Never

from djinn_lab.errors import PoolError
from djinn_lab.protocol.template import PACKET_BYTES_MAX, Ended, Fork, Forked, decode_fork, encode

assert sys.platform == "linux"


class WorkerTemplate:
    """``control``: the connection to the pool. It owns the workers that it forked until they have ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, tuple[int, int]] = {}
        """By pidfd: number and process."""

    def serve(self) -> None:
        """Fork workers until the pool closes the connection. They notice that by themselves."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._children:
                    self._reap(descriptor)
                elif not self._take():
                    return

    def _take(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1)
        if not data:
            return False
        order = decode_fork(data)
        pid = os.fork()
        if pid == 0:
            self._become(order, socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])
        handle = os.pidfd_open(pid)
        self._children[handle] = order.number, pid
        self._poll.register(handle, select.POLLIN)
        return self._say(Forked(order.number, pid), handle)

    def _reap(self, handle: int) -> None:
        number, pid = self._children.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        self._say(Ended(number, os.waitstatus_to_exitcode(status)))

    def _say(self, message: Forked | Ended, *handles: int) -> bool:
        try:
            socket.send_fds(self._control, [encode(message)], handles)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _become(self, order: Fork, connection: socket.socket) -> Never:
        """Turn the forked process into a worker."""
        try:
            self._control.close()
            for handle in self._children:
                os.close(handle)
            from djinn_lab.worker.start import serve

            serve(connection, order.options)
        except BaseException:  # noqa: BLE001 - nothing of the template may run on in this process
            traceback.print_exc()
            os._exit(1)


def warm_up() -> None:
    """Import and load what workers use, and run kernels that look at the machine when they run first. Raises
    PoolError when that started a thread."""
    import torch

    import djinn_lab.worker.start  # noqa: F401
    from djinn_lab.numerics import settle_kernels
    from djinn_lab.worker.executor import find_executor

    find_executor()
    torch.set_num_threads(1)
    settle_kernels()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise PoolError(
            f"The template of workers has {threads} threads where it may have one.",
            "Start the pool with --isolation none, and report this with the version of torch.",
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="djinn_lab.worker.template")
    parser.add_argument("--fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args().fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the pool
    warm_up()
    gc.collect()
    gc.freeze()  # what was imported stays shared: no collection of a worker writes to it
    with contextlib.suppress(ConnectionResetError):
        WorkerTemplate(control).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
