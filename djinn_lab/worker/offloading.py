"""Runs a program that needs more memory than the device has: values that the next ops do not use go to the
host, and come back before the op that reads them.

Which one goes: the storage whose next use lies farthest ahead, which is known, since the program is (L. A.
Belady, A study of replacement algorithms for a virtual-storage computer, 1966). A storage that no op wrote
since it was copied is dropped without another copy. What an op reads and makes has to fit by itself.

All of it is decided in the thread that runs programs, between two ops. What comes back is copied by another
one while ops run, where it fits (:mod:`djinn_lab.worker.prefetching`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import perf_counter, sleep
from typing import NamedTuple

import torch

from djinn_lab.errors import ValueLost
from djinn_lab.srg.lost_values import value_lost
from djinn_lab.srg.offload import NEVER, NextUses
from djinn_lab.srg.program import Program
from djinn_lab.worker import parking
from djinn_lab.worker.copying import Copies
from djinn_lab.worker.loading import Loading
from djinn_lab.worker.memory_account import CANNOT_LEAVE, MemoryAccount
from djinn_lab.worker.parked import ParkedStorage
from djinn_lab.worker.prefetching import LookAhead
from djinn_lab.worker.preparation import Products
from djinn_lab.worker.reading import whole_program
from djinn_lab.worker.restoring import Copied, TransferProblem
from djinn_lab.worker.storages import Storage
from djinn_lab.worker.values import SessionValues

LEFT_FOR_OTHERS = 2
"""So many times the device's memory stays free on the host, if there is a disk: sessions are exchanged
through the host, one that leaves the device and one that waits for it."""
IN_USE = ", by other sessions or by what the op itself reads"


class _Coming(NamedTuple):
    """``memory`` is being filled from a stored item, by another thread."""

    item: ParkedStorage
    memory: torch.Tensor
    filled: Future[None]


class Offloading:
    """One run's. ``out_bytes`` were copied to the host for it so far, ``in_bytes`` back, and of these
    ``ahead_bytes`` while ops ran before their reader."""

    def __init__(
        self, session: str, values: SessionValues, copies: Copies, account: MemoryAccount, program: Program
    ) -> None:
        self._session = session
        self._values = values
        self._copies = copies
        self._account = account
        self._program = program
        self._uses: NextUses | None = None
        self._position = 0
        self._wanted: Collection[int | None] = ()
        self._copied = Copied()
        self._look_ahead: LookAhead | None = None
        self._coming: _Coming | None = None
        self._copier: ThreadPoolExecutor | None = None
        self.in_bytes = self.ahead_bytes = 0

    @property
    def out_bytes(self) -> int:
        return self._copied.nbytes

    @property
    def possible(self) -> bool:
        """Return whether there is a host tier; with a disk alone nothing is offloaded."""
        return self._values.tiers.store.arena.capacity_bytes > 0

    def bring_in(self, position: int, identifiers: Collection[int | None]) -> None:
        """Before the op at ``position``: bring these values back, and keep them on the device meanwhile.
        Raises DeviceMemoryError where they do not fit together, and ValueLost where the host's bytes are not
        what was stored."""
        self._position, self._wanted = position, identifiers
        offloaded = self._values.offloaded.values
        if not offloaded:
            return
        for identifier in identifiers:
            found = offloaded.get(identifier)  # type: ignore[arg-type]
            if found is not None and found[1] is not None:
                self._bring(found[1])

    def expect(self, program: Program, products: Sequence[Products], frees: Sequence[Sequence[int]]) -> None:
        """Say what every op of the whole program makes, and what it needs last: then values may come back
        while ops run."""
        self._look_ahead = LookAhead(program, self._values, self._account, products, frees, self._next_uses)

    def bring_in_ahead(self, position: int) -> None:
        """Before the op at ``position``: begin to bring back what a later one reads."""
        if self._look_ahead is None or self._coming is not None or not self._values.offloaded.values:
            return
        ahead = self._look_ahead.from_op(position)
        if ahead is None:
            return
        for storage in ahead.leaving:
            self._leave(storage)
        memory = self._memory_for(ahead.item)
        if self._copier is None:
            self._copier = ThreadPoolExecutor(1, "prefetch")
        self._coming = _Coming(ahead.item, memory, self._copier.submit(self._fill, ahead.item, memory))

    def end(self) -> None:
        """The run is over, or stops: what is coming is dropped again."""
        coming, self._coming = self._coming, None
        if coming is not None:
            wait([coming.filled])
            self._account.release(coming.item.nbytes)
        if self._copier is not None:
            self._copier.shutdown()
            self._copier = None

    def bring_in_what_fits(self, identifiers: Iterable[int]) -> bool:
        """Bring values back as long as there is free memory; return whether all are there."""
        for identifier in identifiers:
            item = self._values.offloaded.values.get(identifier, (None, None))[1]
            if item is not None:
                if item.nbytes > self._account.free_bytes:
                    return False
                self._bring(item)
        return True

    def free(self, nbytes: int) -> str:
        """Offload storages until so many bytes fit; return why they may not, as the end of a sentence."""
        if not self.possible:
            return ""
        if self._coming is not None:
            self._land(self._coming)
        leaving = self._next_uses(self._position, self._wanted)
        if self._account.free_bytes + sum(storage.nbytes for storage in leaving) < nbytes:
            return "" if nbytes > self._account.limit_bytes else IN_USE
        order = sorted(
            leaving,
            key=lambda one: (leaving[one], one.stored_bytes == one.nbytes, one.nbytes),
        )
        while self._account.free_bytes < nbytes and order:
            storage = order.pop()
            try:
                self._store(storage)
            except TransferProblem as problem:
                return f"{CANNOT_LEAVE}{problem.reason}"
            self._leave(storage)
        return ""

    # --- out

    def _next_use_of(self) -> NextUses:
        if self._uses is None:
            nodes, fetch = self._program.nodes, self._program.fetch
            self._uses = NextUses([*((*node.inputs, *node.outputs) for node in nodes), fetch])
        return self._uses

    def _next_uses(self, position: int, wanted: Collection[int | None]) -> dict[Storage, int]:
        """Return the storages that may leave before the op at ``position``, which reads those ``wanted``,
        with their next use from there on."""
        values, uses = self._values, self._next_use_of()
        staying = {values.storage_of.get(one) for one in wanted}  # type: ignore[arg-type]
        next_use: dict[Storage, int] = {}
        for identifier, storage in values.storage_of.items():
            if storage not in staying and _may_leave(storage):
                found = uses.after(identifier, position)
                next_use[storage] = min(next_use.get(storage, NEVER), found)
        return next_use

    def _store(self, storage: Storage) -> None:
        """Copy the pieces of it that are not stored. Raises TransferProblem."""
        fences = self._values.tiers.fences
        for index in range(storage.pieces().count):
            while storage.stored(index) is None:
                began = perf_counter()
                moved = self._copies.store_piece(
                    *(self._session, self._values, storage, index, self._copied),
                    leave_bytes=LEFT_FOR_OTHERS * self._account.limit_bytes,
                )
                if moved is None:
                    with fences.lock:
                        fences.wait_for_readers(storage)
                else:
                    self._pace(began, moved)

    def _leave(self, storage: Storage) -> None:
        """Drop the device's memory of a storage that is stored whole."""
        values = self._values
        with values.tiers.fences.lock:
            values.tiers.fences.wait_for_readers(storage)
            on_it = [one for one, found in values.storage_of.items() if found is storage]
            digest = storage.shared.digest if storage.shared is not None else None
            pieces = parking.take_pieces(storage, values.tiers.store)
            item = ParkedStorage(storage.nbytes, storage.pieces(), pieces, digest, offloaded=True)
            layouts = [(one, values.layout(one)) for one in on_it]
            for one in on_it:
                values.drop(one)
            values.offloaded.storages.append(item)
            for one, layout in layouts:
                values.offloaded.add(one, layout, item)

    # --- in

    def _bring(self, item: ParkedStorage) -> None:
        if self._coming is not None and self._coming.item is item:
            self._land(self._coming)
            return
        memory = self._memory_for(item)
        self._await(lambda: self._fill(item, memory), item)
        self._place(item, memory)

    def _land(self, coming: _Coming) -> None:
        """Wait for what is coming, and place it."""
        self._coming = None
        self._await(coming.filled.result, coming.item)
        self._place(coming.item, coming.memory)
        self.ahead_bytes += coming.item.nbytes

    def _await(self, filled: Callable[[], None], item: ParkedStorage) -> None:
        """Raises ValueLost where the host's bytes are not what was stored."""
        try:
            filled()
        except TransferProblem as problem:
            self._account.release(item.nbytes)
            raise self._lose(item, problem.reason) from problem
        except BaseException:
            self._account.release(item.nbytes)
            raise

    def _memory_for(self, item: ParkedStorage) -> torch.Tensor:
        """Raises DeviceMemoryError."""
        self._account.reserve(item.nbytes, "a value that went to the host for lack of memory")
        try:
            return torch.empty(item.nbytes, dtype=torch.uint8, device=self._copies.device)
        except BaseException:
            self._account.release(item.nbytes)
            raise

    def _place(self, item: ParkedStorage, memory: torch.Tensor) -> None:
        values, device = self._values, self._copies.device
        loading = Loading([item], item.nbytes, {id(item): memory.untyped_storage()})
        loading.arrived.add(id(item))
        with values.tiers.fences.lock:
            layouts = values.offloaded.take_out(item)
            storage = parking.storage_on(values, loading, item)
            parking.keep_pieces(values, storage, item.pieces)
            for identifier, layout in layouts.items():
                values.tensors[identifier] = layout.build(storage.handle, device)
                values.layouts[identifier] = layout
                values.storage_of[identifier] = storage
                storage.references += 1
        self._account.mark_peak()
        self.in_bytes += item.nbytes

    def _lose(self, item: ParkedStorage, reason: str) -> ValueLost:
        values = self._values
        values.lost = reason
        with values.tiers.fences.lock:
            lost = values.offloaded.take_out(item)
            for piece in item.pieces:
                values.tiers.store.drop(piece)
        return value_lost(whole_program(self._program), list(lost), reason)

    def _fill(self, item: ParkedStorage, memory: torch.Tensor) -> None:
        link = self._copies.link
        for index, piece in enumerate(item.pieces):
            began = perf_counter()
            try:
                source = self._values.tiers.store.read(piece)
            except OSError as error:
                raise TransferProblem(f"a stored piece cannot be read: {error}", mismatch=True) from error
            [fingerprint] = link.copy_in([source], [item.cut.view(memory, index)])
            self._copies.compare(piece, fingerprint)
            self._pace(began, piece.nbytes)

    def _pace(self, began: float, nbytes: int) -> None:
        """Take as long as the link takes, where a throttle stands for it."""
        left = began + self._copies.link.seconds(nbytes) - perf_counter()
        if nbytes and left > 0:
            sleep(left)


def _may_leave(storage: Storage) -> bool:
    if storage.arriving or storage.writing or not storage.nbytes:
        return False
    weight = storage.shared
    return weight is None or (len(weight.holders) == 1 and not weight.hidden)
