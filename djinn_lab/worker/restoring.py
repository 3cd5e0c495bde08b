"""The copy of session memory from host or disk to device.

The session is on the device when every piece has been compared. Where a segment waits for it that is known
to be worth it (:class:`~djinn_lab.worker.loading.WantedValues`), what its first op reads is copied first;
then the session is *open*: its values are there, and those whose bytes are still being copied are marked
so, and ops wait for them (:func:`await_values`). A program ends only when the copy has (:func:`await_whole`),
so that nothing is answered that a failed copy would undo. What was parked is kept until the copy has ended.
A copy that fails stops the segment and leaves the session as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from djinn_lab.protocol.worker import Reads
from djinn_lab.units import format_bytes
from djinn_lab.worker import parking
from djinn_lab.worker.link import Link
from djinn_lab.worker.loading import Loading, WantedValues, used_first
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.outcome import Stop
from djinn_lab.worker.parked import Parked, ParkedStorage
from djinn_lab.worker.pieces import Piece, PieceFile
from djinn_lab.worker.tiers import Tiers
from djinn_lab.worker.values import RestoreFailed, SessionValues


class TransferProblem(Exception):
    """``full`` and ``mismatch``: as in :class:`djinn_lab.protocol.worker.CopyFailed`."""

    def __init__(self, reason: str, full: str | None = None, mismatch: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.full = full
        self.mismatch = mismatch


class SessionGone(Exception):
    """Closed while it was copied: no answer is waited for."""


@dataclass
class Copied:
    """The progress of a transfer. ``overflow``: the file on the disk for what the host has no space for."""

    transfer: int = 0
    nbytes: int = 0
    checked_pieces: int = 0
    whole: bool = True
    manifest: bytes | None = None
    serial: int = 0
    values: int = 0
    overflow: PieceFile | None = None

    def describe(self, manifest: bytes, serial: int, values: int) -> None:
        """Note what everything lies at now; see :class:`djinn_lab.protocol.worker.CopyDone`."""
        self.manifest, self.serial, self.values = manifest, serial, values


class Place(NamedTuple):
    """The destination of a piece. ``ends``: the storage whose last piece it is."""

    view: torch.Tensor
    piece: Piece
    ends: ParkedStorage | None


@dataclass(frozen=True)
class Restores:
    """Restore sessions of one device. ``to_host``: stores pieces of a session with their fingerprints, in
    the memory of this process or on the disk; :meth:`djinn_lab.worker.copying.Copies.to_host`."""

    tiers: Tiers
    link: Link
    account: MemoryAccount
    device: torch.device
    sessions: Mapping[str, SessionValues]
    to_host: Callable[
        [str, Sequence[torch.Tensor], Iterable[Sequence[bytes]], Copied],
        tuple[list[Piece], int, TransferProblem | None],
    ]

    def restore(self, values: SessionValues, copied: Copied, wanted: WantedValues) -> Iterator[int]:
        """Yield as the other copies do."""
        loading = wanted.loading = self._begin(values, wanted.reads)
        try:
            yield from self._take_offloaded(values, loading, copied)
            self._allocate(loading)
            places = self._places(loading)
            self._serve(values, loading, wanted)
            while batch := self._next_batch(loading, places):
                yield self._copy(values, loading, batch, copied)
                self._arrive(values, loading, batch)  # now: a throttled link takes its time before
                self._serve(values, loading, wanted)
        except SessionGone:
            raise
        except Exception as error:
            self._undo(values, loading, error)
            raise
        with self.tiers.fences.lock:
            if values.loading is not loading:
                raise SessionGone
            if loading.origin is not None:
                loading.whole = True
                loading.origin.clear()
                return
            values.loading = None
            parking.unpark(values, loading, self.device)

    def ended(self, values: SessionValues, wanted: WantedValues) -> None:
        """The pool knows: a segment that ran meanwhile may be answered."""
        with self.tiers.fences.lock:
            if wanted.loading is not None and values.loading is wanted.loading:
                values.loading = None
                self.tiers.fences.changed.notify_all()

    def distrust(self, piece: Piece) -> None:
        """Other sessions may have counted on the same bytes; those on the device store them again."""
        with self.tiers.fences.lock:
            self.tiers.store.condemn(piece)
            for values in list(self.sessions.values()):
                parking.distrust(values, piece)

    # --- its beginning

    def _begin(self, values: SessionValues, reads: Reads | None) -> Loading:
        with self.tiers.fences.lock:
            if values.closed:
                raise SessionGone
            parked = values.parked
            if values.state != "parked" or parked is None:
                raise TransferProblem(
                    "it is on the device already" if values.state == "resident" else "it is being restored"
                )
            self._offload_excess(parked, reads)
            coming = [item for item in parked.storages if not item.offloaded]
            here = {
                id(item): weight
                for item in coming
                if item.shared is not None and (weight := self.tiers.weights.find(item.shared)) is not None
            }
            needed = sum(item.nbytes for item in coming if id(item) not in here)
            if not self.account.reserve_other(needed):
                used = self.account.used_bytes
                raise TransferProblem(
                    f"the device is full: it needs {format_bytes(needed)}, and {format_bytes(used)} of "
                    f"{format_bytes(self.account.limit_bytes)} are used",
                    full="device",
                )
            parked.loading = True
            values.state = "loading"
            loading = values.loading = Loading(coming, needed)
            for item in coming:
                if id(item) in here:
                    loading.looked_at[id(item)] = values.look_at(here[id(item)])
        return loading

    def _offload_excess(self, parked: Parked, reads: Reads | None) -> None:
        """Leave on the host what is more than the device has, of what is used last."""
        left = self.account.limit_bytes
        for item in used_first(parked, reads):
            if not item.offloaded:
                item.offloaded = item.nbytes > left
                left -= 0 if item.offloaded else item.nbytes

    def _take_offloaded(self, values: SessionValues, loading: Loading, copied: Copied) -> Iterator[int]:
        """What stays on the host must lie in this process's own memory there: another process's goes with
        it."""
        parked = values.parked
        assert parked is not None
        session = next(name for name, known in self.sessions.items() if known is values)
        for item in [item for item in parked.storages if item.offloaded]:
            for index, piece in enumerate(item.pieces):
                if piece.file is not None and not piece.file.owned:
                    own = self._own_copy(session, piece, copied)
                    with self.tiers.fences.lock:
                        item.pieces[index] = own
                        self.tiers.store.drop(piece)
                        if values.loading is not loading:
                            raise SessionGone
                    copied.nbytes += piece.nbytes
                    yield piece.nbytes

    def _own_copy(self, session: str, piece: Piece, copied: Copied) -> Piece:
        try:
            content = self.tiers.store.read(piece)
        except OSError as error:
            raise TransferProblem(f"a stored piece cannot be read: {error}", mismatch=True) from error
        fingerprint = self.link.fingerprint_on_host(content)
        self.compare(piece, fingerprint)
        pieces, _, problem = self.to_host(session, [content], [[fingerprint]], copied)
        if problem is not None:
            raise problem
        return pieces[0]

    def _allocate(self, loading: Loading) -> None:
        try:
            for item in loading.items:
                if id(item) not in loading.looked_at:
                    memory = torch.empty(item.nbytes, dtype=torch.uint8, device=self.device)
                    loading.handles[id(item)] = memory.untyped_storage()
        except (RuntimeError, MemoryError) as error:
            raise TransferProblem(f"the device has no memory left: {error}", full="device") from error
        loading.allocated()

    # --- its pieces

    def _serve(self, values: SessionValues, loading: Loading, wanted: WantedValues) -> None:
        """Serve the segment that waits for the copy, and open the session where it may begin."""
        reads = wanted.reads
        if reads is None:
            return
        with self.tiers.fences.lock:
            if values.loading is not loading:
                raise SessionGone
            parked = loading.origin or values.parked
            assert parked is not None
            if loading.reads is not reads:
                loading.arrange(reads, parked)
            if (
                loading.notified
                or loading.first - loading.arrived
                or len(loading.arrived) == len(loading.items)
            ):
                return
            if loading.origin is None:
                loading.origin = parked
                parking.unpark(values, loading, self.device)
            loading.notified = True
        wanted.notify(reads)

    def _places(self, loading: Loading) -> Iterator[Place]:
        """Yield the destination of each piece. The next storage is chosen with its first piece."""
        while loading.pending:
            item = loading.pending.popleft()
            handle = loading.handles.get(id(item))
            if handle is None:
                continue  # the session looks at memory that another one has
            memory = torch.empty(0, dtype=torch.uint8, device=self.device).set_(handle)
            for index, piece in enumerate(item.pieces):
                last = index == len(item.pieces) - 1
                yield Place(item.cut.view(memory, index), piece, item if last else None)

    def _next_batch(self, loading: Loading, places: Iterator[Place]) -> list[Place]:
        """Empty when all is copied. Shorter where the first op waits for nothing else."""
        batch: list[Place] = []
        nbytes = 0
        for place in places:
            batch.append(place)
            nbytes += place.piece.nbytes
            if nbytes >= self.link.batch_bytes or loading.completes_first(_ended(batch)):
                break
        return batch

    def _copy(self, values: SessionValues, loading: Loading, batch: Sequence[Place], copied: Copied) -> int:
        """The bytes that were copied, and are what was stored."""
        with self.tiers.fences.lock:
            if values.loading is not loading:
                raise SessionGone
            loading.busy = True
        try:
            try:
                sources = [self.tiers.store.read(place.piece) for place in batch]
            except OSError as error:
                raise TransferProblem(f"a stored piece cannot be read: {error}", mismatch=True) from error
            found = self.link.copy_in(sources, [place.view for place in batch])
            for place, fingerprint in zip(batch, found, strict=True):
                self.compare(place.piece, fingerprint)
        finally:
            with self.tiers.fences.lock:
                loading.busy = False
                self.tiers.fences.changed.notify_all()
        nbytes = sum(place.piece.nbytes for place in batch)
        copied.nbytes += nbytes
        copied.checked_pieces += len(batch)
        return nbytes

    def _arrive(self, values: SessionValues, loading: Loading, batch: Sequence[Place]) -> None:
        with self.tiers.fences.lock:
            if values.loading is not loading:
                raise SessionGone
            parking.arrived(values, loading, _ended(batch))
            self.tiers.fences.changed.notify_all()

    def compare(self, piece: Piece, fingerprint: bytes) -> None:
        if fingerprint == piece.fingerprint:
            return
        self.distrust(piece)
        place, offset = self.tiers.store.place(piece)
        elsewhere = piece.file is not None and not piece.file.owned
        why = ": they gave way to other state when the tiers were full, or were damaged" if elsewhere else ""
        raise TransferProblem(
            f"{format_bytes(piece.nbytes)} at byte {offset} of {place} are not what was stored{why}",
            mismatch=True,
        )

    # --- its failure

    def _undo(self, values: SessionValues, loading: Loading, error: Exception) -> None:
        """Parked as before; but when bytes are not what they were, none of them may be used."""
        fences = self.tiers.fences
        with fences.lock:
            if values.loading is not loading:
                return
            if loading.origin is None:
                parking.stop_loading(values)
            else:
                loading.problem = error
                values.stop_run()
                fences.changed.notify_all()
                while values.running:
                    fences.changed.wait()
                if values.loading is not loading:
                    return
                parking.park_again(values, loading)
            if isinstance(error, TransferProblem) and error.mismatch:
                parking.lose(values, error.reason)


def _ended(batch: Sequence[Place]) -> list[ParkedStorage]:
    return [place.ends for place in batch if place.ends is not None]


LOOK_S = 0.05
"""How often a run that waits looks whether it is to stop."""


def await_values(
    values: SessionValues, identifiers: Iterable[int | None], should_stop: Callable[[], Stop | None]
) -> None:
    """Return when the bytes of these are on the device, or the run is to stop. Raises RestoreFailed when they
    will not come."""
    changed = values.tiers.fences.changed
    found = [values.storage_of.get(identifier) for identifier in identifiers]  # type: ignore[arg-type]
    storages = [storage for storage in found if storage is not None]
    with changed:
        while any(storage.arriving for storage in storages):
            loading = values.loading
            if loading is None or loading.problem is not None:
                raise RestoreFailed
            if should_stop() is not None:
                return
            changed.wait(LOOK_S)


def await_whole(values: SessionValues) -> bool:
    """Return when all of the session is on the device and the pool knows; False as soon as the copy fails."""
    changed = values.tiers.fences.changed
    with changed:
        loading = values.loading
        if loading is None or loading.origin is None:
            return True
        while values.loading is loading and loading.problem is None:
            changed.wait()
        return loading.problem is None


def await_end(values: SessionValues) -> None:
    """Return when the session is parked again after its copy failed, and the pool knows. The run is over."""
    changed = values.tiers.fences.changed
    with changed:
        loading = values.loading
        while loading is not None and values.loading is loading:
            changed.wait()
