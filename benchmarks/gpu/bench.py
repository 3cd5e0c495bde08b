"""What every experiment gets: the device, how large it may be, and pools of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

from benchmarks.bench import own_runtime
from benchmarks.figures import Figure
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.compiling import INDUCTOR
from djinn_lab.protocol.runtime_file import RuntimeInfo

GIB = 2**30
START_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class GpuBench:
    """``small``: sizes with which everything runs in a minute, on any accelerator."""

    device: torch.device
    small: bool

    def size(self, full: int, small: int) -> int:
        return small if self.small else full

    def sync(self) -> None:
        torch.accelerator.synchronize(self.device)

    def timed(self, run: Callable[[], object]) -> float:
        """Return the seconds from the call until the device has ended."""
        self.sync()
        began_s = perf_counter()
        run()
        self.sync()
        return perf_counter() - began_s

    @property
    def devices(self) -> str:
        """Return what ``pool start --devices`` takes."""
        return "cuda" if self.device.type == "cuda" else f"{self.device.type}:1"

    @property
    def free_bytes(self) -> int:
        free, _ = torch.get_device_module(self.device).mem_get_info(self.device)
        return int(free)


class GpuPool:
    """A pool of the device, as it starts by default but for a share of the card that leaves the baselines
    theirs."""

    def __init__(self, info: RuntimeInfo, stack: ExitStack) -> None:
        self.info, self._stack = info, stack
        self.rest = PoolClient(info.url, info.token)
        stack.callback(self.rest.close)

    def session(self, user: str | None = None) -> Session:
        """Open a session, which is closed with the pool; of another user, in a trust group of its own."""
        token = self.info.token if user is None else self.rest.create_user(user).token
        session = Session(self.info.url, token, default_profile(), user or "bench")
        self._stack.callback(session.close)
        return session


@contextmanager
def gpu_pool(
    bench: GpuBench,
    memory_bytes: int | None = None,
    host_bytes: int | None = None,
    region_compiler: str = INDUCTOR,
) -> Iterator[GpuPool]:
    """``memory_bytes``: of the device; None: 0.4 of what is free. ``host_bytes``: None for the default."""
    torch.accelerator.empty_cache()
    with own_runtime(), ExitStack() as stack:
        stack.callback(stop_pool)
        info = start_pool(
            devices=bench.devices,
            memory_bytes=memory_bytes or int(0.4 * bench.free_bytes),
            host_bytes=host_bytes,
            accept_weak_isolation=True,
            region_compiler=region_compiler,
            wait_s=START_TIMEOUT_S,
        )
        yield GpuPool(info, stack)


Experiment = Callable[[GpuBench], list[Figure]]
