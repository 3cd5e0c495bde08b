"""What a launcher and the template process say to each other, to fork workers.

The template imports what workers need once. Each message is one packet of a socket pair. A :class:`Fork`
comes with the worker's end of its connection to the pool; a :class:`Forked` leaves with a descriptor of the
process (``pidfd``), which stays its own however long the pool keeps it."""

from __future__ import annotations

import msgspec

from djinn_lab.protocol.compiling import INDUCTOR

PACKET_BYTES_MAX = 64 * 2**10


class WorkerOptions(msgspec.Struct, frozen=True):
    """All settings of a worker at its start. 0 bytes: no such tier. ``link_bytes_per_second``: of
    the throttle that stands for a CPU device's link, 0 for none. ``host_directory``, ``disk_directory``:
    of the worker's trust group. ``host_account``: the file in which the workers of the device count host
    memory together, and ``host_row``: this worker's row of it. ``compiled_directory``: where the pool puts
    the libraries of compiled regions; None: it compiles none. ``region_compiler``: what compiles them.
    ``confined``: whether a worker with a device's driver enters the sandbox that leaves it its way."""

    device: str
    memory_bytes: int
    threads: int
    store_directory: str
    result_directory: str
    host_bytes: int = 0
    host_directory: str | None = None
    host_account: str | None = None
    host_row: int = 0
    disk_bytes: int = 0
    disk_directory: str | None = None
    link_bytes_per_second: float = 0.0
    compiled_directory: str | None = None
    region_compiler: str = INDUCTOR
    confined: bool = True

    def arguments(self) -> list[str]:
        """Return the options as those of ``python -m djinn_lab.worker``."""
        found = ["--device", self.device, "--memory-bytes", str(self.memory_bytes)]
        found += ["--threads", str(self.threads)]
        found += ["--store-directory", self.store_directory, "--result-directory", self.result_directory]
        found += ["--link-bytes-per-second", str(self.link_bytes_per_second)]
        if self.host_bytes and self.host_directory is not None:
            found += ["--host-bytes", str(self.host_bytes), "--host-directory", self.host_directory]
            found += ["--host-account", self.host_account] if self.host_account is not None else []
            found += ["--host-row", str(self.host_row)]
        if self.disk_bytes and self.disk_directory is not None:
            found += ["--disk-bytes", str(self.disk_bytes), "--disk-directory", self.disk_directory]
        if self.compiled_directory is not None:
            found += ["--compiled-directory", self.compiled_directory]
            found += ["--region-compiler", self.region_compiler]
        if not self.confined:
            found.append("--not-confined")
        return found


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Fork a worker; ``number`` names it from here on."""

    number: int
    options: WorkerOptions


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    number: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """``code``: of its exit; negative: the signal that killed it."""

    number: int
    code: int


FromTemplate = Forked | Ended

encode = msgspec.msgpack.Encoder().encode
decode_fork = msgspec.msgpack.Decoder(Fork).decode
decode_from_template = msgspec.msgpack.Decoder(FromTemplate).decode
