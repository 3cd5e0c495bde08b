"""What a session knows of the memory of the device that has its state."""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab.capture.torch_functions.pool_memory import PoolMemory
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.executor import PoolExecutor
from djinn_lab.client.rest import PoolClient
from djinn_lab.protocol.messages import QueryBlobs


class DeviceMemory:
    """Asks the pool each time. ``rest``: its interface, as the session's user. ``ask``: exchanges messages
    with it behind all that the session has sent."""

    def __init__(
        self,
        executor: PoolExecutor,
        rest: Callable[[], PoolClient],
        ask: Callable[[Callable[[PoolConnection], object]], object],
    ) -> None:
        self._executor = executor
        self._rest = rest
        self._ask = ask

    def look(self) -> PoolMemory | None:
        """None where no pool is connected."""
        if not self._executor.connected:
            return None
        self._ask(_be_heard)
        session = self._executor.connection.welcome.session
        memory = self._rest().settled_memory(session)
        own = memory.session(session)
        name = None if own is None else own.device
        account = next((one for one in memory.devices if one.device == name), memory.devices[0])
        return PoolMemory(
            account.device,
            account.memory_bytes,
            account.used_bytes,
            account.session_bytes.get(session, 0),
            self._executor.peak_bytes,
        )

    def reset_peak(self) -> None:
        self._executor.peak_bytes = 0


def _be_heard(connection: PoolConnection) -> None:
    """Wait until the pool has read what was sent before, releases among it: a REST request would overtake
    them. The question is about nothing, and every protocol has its answer."""
    connection.send(QueryBlobs([]))
    connection.receive_missing()
