"""A way to the pool that breaks when a test says so."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes on between clients and a pool, inside a ``with`` statement."""

    def __init__(self, pool_url: str) -> None:
        address = urlsplit(pool_url)
        assert address.hostname is not None
        assert address.port is not None
        self._pool = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._open = True
        self._answers = threading.Event()
        self._answers.set()
        self._handshakes_pass = False
        self.accepted = 0

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answers.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # or the thread waits on
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for one in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close_way(self) -> None:
        """Break all connections, and every new one, until :meth:`open_way`."""
        self._open = False
        self.cut()

    def open_way(self) -> None:
        self._open = True

    def hold_answers(self, behind_handshakes: bool = False) -> None:
        """Keep here what the pool sends; ``behind_handshakes``: but for the first on each connection."""
        self._handshakes_pass = behind_handshakes
        self._answers.clear()

    def pass_answers(self) -> None:
        """Pass on what was kept, and what comes."""
        self._answers.set()

    def lose_answers(self) -> None:
        """Break all connections, with what the pool has sent meanwhile."""
        self.cut()
        self._answers.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if not self._open:
                client.close()
                continue
            try:
                pool = socket.create_connection(self._pool)
            except OSError:
                client.close()  # the pool is down
                continue
            with self._lock:
                self._pairs.append((client, pool))
            threading.Thread(target=self._pass_on, args=(client, pool, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(pool, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if answers and not (self._handshakes_pass and passed == 0):
                    self._answers.wait()
                sink.sendall(data)
                passed += 1
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
