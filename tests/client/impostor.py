"""A server that has a pool's place and not its certificate."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

from djinn_lab.pool.certificates import own_certificate

HOST = "127.0.0.1"


class Impostor:
    """Has the pool's place and another certificate, and keeps what it is sent."""

    def __init__(self, directory: Path) -> None:
        made = own_certificate(directory, HOST)
        self.pem = made.pem
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.certificate, made.key)
        self._context = context
        self._listener = socket.create_server((HOST, 0))
        self.url = f"https://{HOST}:{self._listener.getsockname()[1]}"
        self.heard = b""
        self.visits = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.visits += 1
            try:
                with self._context.wrap_socket(plain, server_side=True) as connection:
                    self.heard += connection.recv(65536)
            except OSError:
                plain.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
