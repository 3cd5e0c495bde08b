"""Pages as objects: a board whose background work arrives while the test waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Hub
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import LIGHT

WAIT_S = 15.0


class WhileTheTestWaits(Background):
    """What other threads found is delivered between two steps of the test, as an event loop would."""

    arrived: ClassVar[SimpleQueue[Callable[[], Any]]] = SimpleQueue()

    def soon(self, call: Callable[[], Any]) -> None:
        if threading.current_thread() is threading.main_thread():
            call()
        else:
            self.arrived.put(call)


def wait_until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        with suppress(Empty):
            WhileTheTestWaits.arrived.get(timeout=0.02)()


@contextmanager
def board_of(find: Callable[[], PoolClient], logged_in: bool = True) -> Iterator[Board]:
    """A board of the user as which ``find`` reaches the pool, with one snapshot."""
    hub = Hub(find)
    hub.poll()
    yield Board(hub, Route(), WhileTheTestWaits(hub.executor), LIGHT, logged_in=logged_in)
    hub.stop()
    while not WhileTheTestWaits.arrived.empty():
        WhileTheTestWaits.arrived.get()
