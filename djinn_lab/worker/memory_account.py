"""Live bytes on the device against an enforced limit, counted from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.units import format_bytes
from djinn_lab.worker.executor import Counts, Executor
from djinn_lab.worker.heap import Heap

CANNOT_LEAVE = "; other values of the session cannot leave it, since "
LESS = "Use a smaller batch, delete tensors you no longer need (del x), or ask for a device with more memory."
MORE_BELOW = (
    "The model needs a pool with more --host-memory, or with --disk, for what does not fit on the device. "
    "Else use a smaller batch, or delete tensors you no longer need (del x)."
)


class MemoryAccount:
    """Bytes are reserved before they are allocated. The thread that runs programs counts for itself, without
    a lock; all other threads use the methods named ``other``. Each side announces what it takes (the others
    as a claim) before it looks at the other's count, so two takers never both get the last bytes."""

    def __init__(self, limit_bytes: int, executor: Executor | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.executor = executor
        self.counts: Counts = PythonCounts(limit_bytes) if executor is None else executor.Account(limit_bytes)
        self.start_peak = self.counts.start_peak
        self.add = self.counts.add
        self.mark_peak = self.counts.mark_peak
        self.settle = self.counts.settle
        self.release = self.counts.release
        self.reserve_other = self.counts.reserve_other
        self.release_other = self.counts.release_other
        self.offload: Callable[[int], str] | None = None
        """Called where so many bytes do not fit, in the thread that runs programs: frees what it can, and
        returns why that may not be enough."""
        self.spare: Callable[[], None] | None = None
        """Called before it, in the same thread: frees what is there only to be faster."""
        self.drop_other: Callable[[], None] | None = None
        """Called where the system refuses memory: gives up what this process holds for itself."""
        self.heap: Heap | None = None
        """Where the process of the account lies; None: it is of no concern."""
        self._beside_bytes = 0
        """Of the limit, what other processes of the device have; counted as if it were used here."""

    @property
    def used_bytes(self) -> int:
        return self.counts.used_bytes - self._beside_bytes

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.counts.used_bytes)

    @property
    def peak_bytes(self) -> int:
        return max(self.used_bytes, self.counts.peak_bytes - self._beside_bytes)

    def lease(self, limit_bytes: int) -> int:
        """Use at most so many bytes of the device, or as many as are in use; return how many. Called by one
        thread."""
        change = self.limit_bytes - limit_bytes - self._beside_bytes
        if change <= 0:
            self.release_other(-change)
        else:
            while not self.reserve_other(change):
                change = max(0, min(change - 1, self.limit_bytes - self.counts.used_bytes))
        self._beside_bytes += change
        return self.limit_bytes - self._beside_bytes

    def reserve(self, nbytes: int, what: str) -> None:
        """Take ``nbytes``, or raise DeviceMemoryError when they would not fit."""
        used = self.counts.reserve(nbytes)
        why = ""
        if used is not None and self.spare is not None:
            self.spare()
            used = self.counts.reserve(nbytes)
        if used is not None and self.offload is not None:
            why = self.offload(nbytes)
            used = self.counts.reserve(nbytes)
        if used is None:
            return
        beside = ""
        if self._beside_bytes:
            beside = f", {format_bytes(self._beside_bytes)} of them by processes of other users"
        raise DeviceMemoryError(
            f"{what} needs {format_bytes(nbytes)}, and {format_bytes(used)} of the device's "
            f"{format_bytes(self.limit_bytes)} are in use{beside}{why}.",
            MORE_BELOW if why.startswith(CANNOT_LEAVE) else LESS,
        )

    def give_way(self, nbytes: int) -> None:
        """Free so many bytes more than are free by the count, as far as that is possible: the system refused
        an op memory, which kernels take for themselves, too."""
        if self.drop_other is not None:
            self.drop_other()
        if self.spare is not None:
            self.spare()
        if self.offload is not None:
            self.offload(self.free_bytes + nbytes)
        if self.heap is not None:
            self.heap.trim()

    def refused(self, what: str) -> DeviceMemoryError:
        """Return the error for an op that the system gave no memory."""
        held = "" if self.heap is None else f", and its process holds {format_bytes(self.heap.held_bytes())}"
        return DeviceMemoryError(
            f"{what} needs more memory for its own use than the worker can have: tensors use "
            f"{format_bytes(self.used_bytes)} of the device's {format_bytes(self.limit_bytes)}{held}.",
            LESS,
        )


class PythonCounts:
    """The counts of a :class:`MemoryAccount`, where every thread that uses them holds the GIL."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._own_bytes = 0
        self._other_bytes = 0
        self._claimed_bytes = 0
        self._own_peak = 0
        self._other_peak = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._own_bytes + self._other_bytes

    @property
    def peak_bytes(self) -> int:
        return max(self._own_peak, self._other_peak)

    def start_peak(self) -> None:
        """The high-water mark begins at what is used now."""
        self._own_peak = self._other_peak = self.used_bytes

    def add(self, nbytes: int) -> None:
        self._own_bytes += nbytes
        self.mark_peak()

    def mark_peak(self) -> None:
        used = self._own_bytes + self._other_bytes
        if used > self._own_peak:
            self._own_peak = used

    def reserve(self, nbytes: int) -> int | None:
        """Take ``nbytes`` and return None, or return how much is in use when they would not fit."""
        self._own_bytes += nbytes
        claimed = self._claimed_bytes  # looked at first: a claim is counted among the others before it ends
        if claimed + self._own_bytes + self._other_bytes <= self._limit_bytes:
            return None
        with self._lock:  # what another thread was about to take it has now, or has not
            used = self._own_bytes + self._other_bytes - nbytes
            if used + nbytes <= self._limit_bytes:
                return None
            self._own_bytes -= nbytes
            return used

    def settle(self, reserved: int, used: int) -> None:
        """Count reserved bytes as used: ``used`` of them, or more."""
        self._own_bytes += used - reserved
        self.mark_peak()

    def release(self, nbytes: int) -> None:
        """Release bytes that were reserved and not used."""
        self._own_bytes -= nbytes

    def reserve_other(self, nbytes: int) -> bool:
        """Reserve bytes as :meth:`reserve` does, from another thread; return False when they do not fit."""
        with self._lock:
            self._claimed_bytes = nbytes
            used = self._own_bytes + self._other_bytes + nbytes
            fits = used <= self._limit_bytes
            if fits:
                self._other_bytes += nbytes
                self._other_peak = max(self._other_peak, used)
            self._claimed_bytes = 0
            return fits

    def release_other(self, nbytes: int) -> None:
        with self._lock:
            self._other_bytes -= nbytes
