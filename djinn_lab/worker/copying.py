"""The three copies of session memory, as steps of one piece each: store, restore, demote.

Every generator yields the bytes that went over the link for the piece that it just saw to, and looks again,
after each, whether its session still exists.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from time import monotonic

import torch

from djinn_lab.units import format_bytes
from djinn_lab.worker.link import Link
from djinn_lab.worker.loading import WantedValues
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.parked import ManifestWriter, Parked, write_parked
from djinn_lab.worker.pieces import Piece, PieceFile
from djinn_lab.worker.restoring import Copied, Restores, SessionGone, TransferProblem
from djinn_lab.worker.storages import Storage
from djinn_lab.worker.tiers import Tiers
from djinn_lab.worker.values import SessionValues

OTHERS_ANSWER_WITHIN_S = 1.0
LOOK_AGAIN_S = 0.005


@dataclass
class Copies:
    """The copies of one device."""

    tiers: Tiers
    link: Link
    account: MemoryAccount
    device: torch.device
    sessions: Mapping[str, SessionValues]
    want_host: Callable[[int, bool], None] = lambda nbytes, copies: None
    """Asks the other workers of the device for host memory."""

    # --- store

    def store(self, name: str, values: SessionValues, copied: Copied) -> Iterator[int]:
        """Device to host: the pieces without a valid copy there. When the host is full, those copied so
        far stay stored."""
        if values.closed:
            raise SessionGone
        if values.state != "resident" or values.arriving:
            if values.state == "parked" and values.parked is not None:
                with self.tiers.fences.lock:
                    self._describe_parked(name, values, values.parked, copied)
                    values.described = True
                return
            raise TransferProblem("it is not on the device yet")
        again = True
        while again:
            again = False
            for batch in self._batches(values):
                moved, left = self._store_batch(name, values, batch, copied)
                if values.closed:
                    raise SessionGone
                again = again or (left and not values.running)
                if moved is None:
                    continue
                yield moved
                if values.running:  # what was to come next may have been replaced by now
                    again = True
                    break
        with self.tiers.fences.lock:
            while values.leaving or (values.unanswered and not values.running):
                self.tiers.fences.changed.wait()
            if values.closed:
                raise SessionGone
            copied.whole = not values.running and values.unstored_bytes == 0
            if copied.whole:
                self.describe(name, values, copied)

    def _unstored(self, values: SessionValues) -> Iterator[tuple[Storage, int]]:
        """While the session runs only what is complete and likely to stay. Between two pieces no storage is
        held but theirs: those that are dropped meanwhile return their memory."""
        for key in list(values.storages):
            storage = values.storages.get(key)
            if storage is None:
                continue
            running = values.running
            if running and not storage.ready_bytes:
                continue
            cut = storage.pieces()
            for index in range(cut.complete if running else cut.count):
                if storage.alive and storage.stored(index) is None:
                    yield storage, index

    def _batches(self, values: SessionValues) -> Iterator[list[tuple[Storage, int]]]:
        """What :meth:`_unstored` yields, as much at a time as the link copies at once. While the session runs
        a piece at a time: an op that writes one of them waits for all."""
        batch: list[tuple[Storage, int]] = []
        nbytes = 0
        for storage, index in self._unstored(values):
            batch.append((storage, index))
            nbytes += storage.pieces().size(index)
            if nbytes >= self.link.batch_bytes or values.running:
                yield batch
                batch, nbytes = [], 0
        if batch:
            yield batch

    def store_piece(
        self,
        name: str,
        values: SessionValues,
        storage: Storage,
        index: int,
        copied: Copied,
        leave_bytes: int = 0,
    ) -> int | None:
        """The bytes that went over the link; None when an op is writing it, or it is gone. ``leave_bytes``:
        as long as the disk has space, so much of the host is left free."""
        return self._store_batch(name, values, [(storage, index)], copied, leave_bytes)[0]

    def _store_batch(
        self,
        name: str,
        values: SessionValues,
        batch: Sequence[tuple[Storage, int]],
        copied: Copied,
        leave_bytes: int = 0,
    ) -> tuple[int | None, bool]:
        """The bytes that went over the link, None when all of these are written now, or gone; and whether
        some are left. Raises TransferProblem once those before it are stored."""
        fences = self.tiers.fences
        self.tiers.pin_for(sum(storage.pieces().size(index) for storage, index in batch))
        held: dict[Storage, int] = {}
        """Storages that are read here, with their versions."""
        reading = []
        try:
            for storage, index in batch:
                if storage not in held:
                    if not fences.begin_read(storage):
                        continue
                    held[storage] = storage.version
                reading.append((storage, index))
            if not reading:
                storage = batch[0][0]
                if storage.alive and not values.running:
                    fences.wait_for_writer(storage)
                return None, True
            pieces, moved, problem = self._read_pieces(name, reading, copied, leave_bytes)
            with fences.lock:
                for (storage, index), piece in zip(reading, pieces, strict=False):
                    values.commit(storage, index, held[storage], piece)
        finally:
            for storage in held:
                fences.end_read(storage)
        copied.nbytes += moved
        if problem is not None:
            raise problem
        return moved, len(reading) < len(batch)

    def _read_pieces(
        self, name: str, reading: Sequence[tuple[Storage, int]], copied: Copied, leave_bytes: int
    ) -> tuple[list[Piece], int, TransferProblem | None]:
        """As :meth:`to_host`. Nothing of the device's memory is held when it returns: who waits for the end
        of the read may have dropped it."""
        views = [
            self.link.gather(storage.pieces().view(storage.memory(), index)) for storage, index in reading
        ]
        return self.to_host(name, views, self._fingerprints(reading, views), copied, leave_bytes)

    def _fingerprints(
        self, reading: Sequence[tuple[Storage, int]], views: Sequence[torch.Tensor]
    ) -> Iterator[list[bytes]]:
        """Those of a chunk at a time."""
        begin = nbytes = 0
        for end, view in enumerate(views, 1):
            nbytes += view.nbytes
            if nbytes < self.link.chunk_bytes and end < len(views):
                continue
            found = self.link.fingerprints_of(views[begin:end])
            for storage, index in reading[begin:end]:
                self.fingerprint_taken(storage, index)
            yield found
            begin, nbytes = end, 0

    def fingerprint_taken(self, storage: Storage, index: int) -> None:
        """Between looking at a piece's bytes and copying them; tests put gates here."""

    def to_host(
        self,
        session: str,
        views: Sequence[torch.Tensor],
        fingerprints: Iterable[Sequence[bytes]],
        copied: Copied,
        leave_bytes: int = 0,
    ) -> tuple[list[Piece], int, TransferProblem | None]:
        """The held pieces with these bytes, how many bytes of them went over the link, and why there is no
        space for those that are missing at the end. ``fingerprints``: of the views, in chunks: those of the
        next one are taken while one is copied. When the host is full, apart from what a lost worker's
        sessions would be made from, pieces are on the disk, if there is space."""
        fences, store = self.tiers.fences, self.tiers.store
        pieces: list[Piece] = []
        coming: set[Piece] = set()
        problem: TransferProblem | None = None
        moved = 0
        left = iter(views)

        def send(chunk: Sequence[bytes]) -> None:
            nonlocal moved
            new: dict[Piece, torch.Tensor] = {}
            try:
                for fingerprint, view in zip(chunk, left, strict=False):
                    piece, nbytes = self._place(session, view, fingerprint, copied, leave_bytes)
                    pieces.append(piece)
                    moved += nbytes
                    if nbytes and piece.file is None:
                        new[piece] = view
            finally:
                if new:
                    hosts = [store.arena.view(piece.offset, piece.nbytes) for piece in new]
                    self.link.send_out(list(new.values()), hosts)
                    coming.update(new)

        try:
            try:
                for chunk in fingerprints:
                    send(chunk)
            except TransferProblem as error:
                problem = error.with_traceback(None)  # whose frames hold memory of the device
            finally:
                self.link.wait_out()
        except BaseException:
            with fences.lock:
                for piece in pieces:
                    store.drop(piece)
            raise
        with fences.lock:
            return [store.add(piece) if piece in coming else piece for piece in pieces], moved, problem

    def _place(
        self, session: str, view: torch.Tensor, fingerprint: bytes, copied: Copied, leave_bytes: int
    ) -> tuple[Piece, int]:
        """The held piece with these bytes, on the disk if the host is full, and how many bytes go over the
        link for it. One on the host for which some do is new: its bytes are to be copied yet, and the store
        does not know it. Raises TransferProblem where there is no space."""
        fences, store = self.tiers.fences, self.tiers.store
        nbytes = view.nbytes
        name = self.link.name(fingerprint, nbytes)
        with fences.lock:
            found = store.find(name)
            if found is not None:
                return found, 0
            offset = None
            if store.host_free_bytes >= nbytes + leave_bytes:
                offset = self._take(nbytes)
            file = store.extend_file(copied.overflow, session, nbytes) if offset is None else None
            if offset is None and file is None:
                offset = self._take(nbytes, from_copies=True)
        if file is not None:
            copied.overflow = file
            return self._to_disk(view, Piece(name, fingerprint, nbytes, 0), file), nbytes
        if offset is None:
            why = store.arena.refusal or (
                f"{format_bytes(store.arena.account.used_bytes)} of "
                f"{format_bytes(store.arena.capacity_bytes)} are used"
            )
            raise TransferProblem(
                f"the host tier is full: {why}, and a piece of {format_bytes(nbytes)} does not fit",
                full="host",
            )
        return Piece(name, fingerprint, nbytes, offset), nbytes

    def _take(self, nbytes: int, from_copies: bool = False) -> int | None:
        """Take space on the host. With the fences' lock held, but not while it waits."""
        store = self.tiers.store
        offset = store.take(nbytes, from_copies)
        while offset is None and store.arena.is_moving:
            self.tiers.fences.changed.wait()
            offset = store.take(nbytes, from_copies)
        return self._take_from_others(nbytes, from_copies) if offset is None else offset

    def _take_from_others(self, nbytes: int, of_copies: bool = False) -> int | None:
        """Take space that other workers of the device keep and do not need, once they have returned it. The
        lock as for :meth:`_take`."""
        store, fences = self.tiers.store, self.tiers.fences
        if not store.arena.account.kept_by_others(of_copies):
            return None
        self.want_host(nbytes, of_copies)
        until_s = monotonic() + OTHERS_ANSWER_WITHIN_S
        while monotonic() < until_s:
            fences.changed.wait(LOOK_AGAIN_S)
            offset = store.take(nbytes)
            if offset is not None:
                return offset
        return None

    def _to_disk(self, view: torch.Tensor, piece: Piece, file: PieceFile) -> Piece:
        """Write a piece at the end of a file, where its bytes are reserved."""
        store, offset = self.tiers.store, file.nbytes - view.nbytes  # of a file that this copy alone writes
        try:
            host = torch.empty(view.nbytes, dtype=torch.uint8)
            self.link.send_out([view], [host])
            self.link.wait_out()
            with file.path.open("ab", buffering=0) as out:
                out.truncate(offset)  # what a failed write left
                _write_all(out, host)
        except OSError as error:
            with self.tiers.fences.lock:
                store.shorten_file(file, view.nbytes)
            raise TransferProblem(f"{file.path} could not be written: {error}", full="disk") from error
        with self.tiers.fences.lock:
            return store.in_extended(piece, file, offset)

    def describe(self, name: str, values: SessionValues, copied: Copied) -> None:
        """Make the manifest of a session on the device that is stored whole; the caller sends it. The pieces
        are kept until the database has the next manifest, whatever becomes of the values, while there is
        space for them. Call with the fences' lock held."""
        values.described = True
        writer = ManifestWriter(name, self.link.fingerprints, self.tiers.store)
        numbers: dict[int, int] = {}
        for key, storage in values.storages.items():
            cut = storage.pieces()
            pieces = [storage.stored(index) for index in range(cut.count)]
            digest_of = storage.shared.digest if storage.shared is not None else None
            held = [piece for piece in pieces if piece is not None]
            numbers[key] = writer.storage(storage.nbytes, cut, digest_of, held)
        for identifier in values.tensors:
            found = values.storage_of.get(identifier)
            number = None if found is None else numbers[found.key]
            writer.value(identifier, values.layout(identifier), number)
        writer.parked(values.offloaded)
        values.keep_copy(copied.transfer, writer.pieces)
        count = len(values.tensors) + len(values.offloaded.values)
        copied.describe(writer.encoded(), values.serial, count)

    def _describe_parked(self, name: str, values: SessionValues, parked: Parked, copied: Copied) -> None:
        manifest = write_parked(name, self.link.fingerprints, parked, self.tiers.store)
        values.keep_copy(copied.transfer, [piece for item in parked.storages for piece in item.pieces])
        copied.describe(manifest, values.serial, len(parked.values))

    def kept(self, name: str, transfer: int) -> None:
        """The pool's database has what a transfer described."""
        with self.tiers.fences.lock:
            values = self.sessions.get(name)
            if values is not None:
                values.drop_copies_before(transfer)

    # --- restore

    def restore(
        self, values: SessionValues, copied: Copied, wanted: WantedValues | None = None
    ) -> Iterator[int]:
        """Host or disk to device, in the order in which ``wanted`` has it."""
        return self._restores.restore(values, copied, wanted or WantedValues())

    def restore_ended(self, values: SessionValues, wanted: WantedValues) -> None:
        """The pool knows how."""
        self._restores.ended(values, wanted)

    def compare(self, piece: Piece, fingerprint: bytes) -> None:
        """Raise TransferProblem where the bytes on the device are not those that were stored."""
        self._restores.compare(piece, fingerprint)

    @property
    def _restores(self) -> Restores:
        return Restores(self.tiers, self.link, self.account, self.device, self.sessions, self.to_host)

    # --- demote

    def demote(self, name: str, values: SessionValues, copied: Copied, transfer: int) -> Iterator[int]:
        """Host to disk, all of it in one file; the host's pieces are freed at its end. On a problem there
        is no file and nothing changed."""
        fences, store = self.tiers.fences, self.tiers.store
        with fences.lock:
            if values.closed:
                raise SessionGone
            parked = values.parked
            if values.state != "parked" or parked is None:
                raise TransferProblem("only a session that is off the device can go to the disk")
            pieces = [piece for item in parked.storages for piece in item.pieces if piece.file is None]
            held = {id(piece): piece for piece in pieces}  # one may occur often
            for piece in held.values():
                store.hold(piece)
            nbytes = sum(piece.nbytes for piece in held.values())
            file = (
                store.reserve_file(f"session-{os.getpid()}-{transfer}.pieces", name, nbytes) if held else None
            )
        kept = False  # from then on the last of its pieces removes the file
        try:
            if held and file is None:
                raise TransferProblem(
                    f"the disk tier is full: it needs {format_bytes(nbytes)}, and "
                    f"{format_bytes(store.disk_used_bytes)} of {format_bytes(store.disk_bytes_max)} are used",
                    full="disk",
                )
            offsets: dict[int, int] = {}
            if file is not None:
                yield from self._write(values, list(held.values()), file, offsets, copied)
            with fences.lock:
                if values.closed or values.parked is not parked or values.state != "parked":
                    raise SessionGone
                self._now_in_file(parked, file, offsets)
                kept = file is not None and file.pieces > 0
                self._describe_parked(name, values, parked, copied)
        finally:
            with fences.lock:
                if file is not None and not kept:
                    store.remove_file(file)
                for piece in held.values():
                    store.drop(piece)

    def _write(
        self,
        values: SessionValues,
        pieces: list[Piece],
        file: PieceFile,
        offsets: dict[int, int],
        copied: Copied,
    ) -> Iterator[int]:
        try:
            with file.path.open("xb", buffering=0) as out:
                for piece in pieces:
                    if values.closed:
                        raise SessionGone
                    offsets[id(piece)] = copied.nbytes
                    _write_all(out, self.tiers.store.read(piece))
                    copied.nbytes += piece.nbytes
                    yield piece.nbytes
        except OSError as error:
            with suppress(OSError):
                file.path.unlink(missing_ok=True)
            raise TransferProblem(f"{file.path} could not be written: {error}", full="disk") from error

    def _now_in_file(self, parked: Parked, file: PieceFile | None, offsets: dict[int, int]) -> None:
        store = self.tiers.store
        for item in parked.storages:
            for index, piece in enumerate(item.pieces):
                if piece.file is None:
                    assert file is not None
                    item.pieces[index] = store.in_file(piece, file, offsets[id(piece)])
                    store.drop(piece)


def _write_all(out: FileIO, content: torch.Tensor) -> None:
    left = memoryview(content.numpy())  # type: ignore[arg-type]
    while len(left):
        left = left[out.write(left) :]
