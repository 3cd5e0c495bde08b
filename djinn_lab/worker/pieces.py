"""The pieces of parked state on the host and the disk, counted, and found by content.

Equal bytes of several sessions, weights or the KV of an equal prompt, are one piece. A piece that no session
holds any more stays until its space is needed: most often the next state of the same tensor has most of its
pieces. Those of a session's last whole copy stay longest, since a lost worker's state is made from it.
All methods but :meth:`PieceStore.read` are called with the fences' lock held.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch

from djinn_lab.worker.host_arena import HostArena, rounded


@dataclass(eq=False)
class PieceFile:
    """Holds pieces of a session on the disk, or those of another process. ``owned``: deleted with its last
    piece, and the last whole copy that names one of them, of ``copies``."""

    path: Path
    nbytes: int
    owned: bool
    session: str = ""
    pieces: int = 0
    copies: int = 0


@dataclass(eq=False, slots=True)
class Piece:
    """``name``: by its bytes, see :mod:`djinn_lab.protocol.piece_names`. ``fingerprint``: of the device's
    bytes when it was stored, see :mod:`djinn_lab.worker.link`. ``offset``: in the arena, or in ``file`` where
    that is given. ``copies``: whole copies that name it."""

    name: bytes
    fingerprint: bytes
    nbytes: int
    offset: int
    file: PieceFile | None = None
    references: int = 1
    copies: int = 0


class PieceStore:
    """``on_disk_bytes``: of pieces in files of this process, by session."""

    def __init__(self, arena: HostArena, disk_bytes: int = 0, disk_directory: Path | None = None) -> None:
        self.arena = arena
        self.disk_bytes_max = disk_bytes
        self.disk_directory = disk_directory
        self._disk_bytes = 0
        self._idle_files: dict[int, PieceFile] = {}
        """By identity, those that only whole copies name."""
        self.on_disk_bytes: dict[str, int] = {}
        self._by_name: dict[bytes, Piece] = {}
        self._idle: dict[bytes, Piece] = {}
        self._of_copies: dict[bytes, Piece] = {}
        """Idle, too, and named by a whole copy."""
        self._idle_bytes = self._copies_bytes = 0

    @property
    def host_used_bytes(self) -> int:
        """Bytes of pieces that are held."""
        return self.arena.used_bytes - self.host_kept_bytes

    @property
    def host_kept_bytes(self) -> int:
        """Bytes of pieces that are not held, and are dropped when space is needed."""
        return self._idle_bytes + self._copies_bytes

    @property
    def host_free_bytes(self) -> int:
        """Bytes that no worker of the device holds."""
        account = self.arena.account
        kept = self.host_kept_bytes + self.arena.spare_bytes
        held = account.used_bytes - account.kept_by_others(of_copies=True) - kept
        return min(self.arena.capacity_bytes, account.capacity_bytes) - held

    @property
    def disk_used_bytes(self) -> int:
        """Bytes of files with pieces that are held."""
        return self._disk_bytes - sum(file.nbytes for file in self._idle_files.values())

    def find(self, name: bytes) -> Piece | None:
        """The host's piece with these bytes, held once more."""
        piece = self._by_name.get(name)
        if piece is None:
            return None
        if not piece.references:
            self._unshelve(piece)
        piece.references += 1
        return piece

    def take(self, nbytes: int, from_copies: bool = False) -> int | None:
        """Space in the arena, freed by dropping idle pieces, the oldest first; None when it is full.
        ``from_copies``: those of whole copies, too, last of all. Their sessions are lost if this process
        dies before their next copy."""
        offset = self.arena.take(nbytes)
        while offset is None and self._drop_oldest(from_copies):
            offset = self.arena.take(nbytes)
        return offset

    def release(self, nbytes: int, from_copies: bool = False) -> None:
        """Return so many bytes that are kept, as far as there are, so that other workers have them."""
        left = self.arena.used_bytes - nbytes
        while self.arena.used_bytes > left and self._drop_oldest(from_copies):
            pass

    def release_idle(self) -> None:
        """Return what neither a session nor a whole copy holds."""
        self.release(self._idle_bytes)

    def _drop_oldest(self, from_copies: bool) -> bool:
        kept = self._idle or (self._of_copies if from_copies else {})
        if not kept:
            return False
        piece = next(iter(kept.values()))
        self._unshelve(piece)
        del self._by_name[piece.name]
        self.arena.give_back(piece.offset, piece.nbytes)
        return True

    def _shelve(self, piece: Piece) -> None:
        """Keep a piece that no session holds."""
        if piece.copies:
            self._of_copies[piece.name] = piece
            self._copies_bytes += rounded(piece.nbytes)
        else:
            self._idle[piece.name] = piece
            self._idle_bytes += rounded(piece.nbytes)
        self.arena.note_kept(self._idle_bytes, self._copies_bytes)

    def _unshelve(self, piece: Piece) -> None:
        if piece.copies:
            del self._of_copies[piece.name]
            self._copies_bytes -= rounded(piece.nbytes)
        else:
            del self._idle[piece.name]
            self._idle_bytes -= rounded(piece.nbytes)
        self.arena.note_kept(self._idle_bytes, self._copies_bytes)

    def condemn(self, piece: Piece) -> None:
        """Hide a piece whose bytes have changed: no other session may find it."""
        if self._by_name.get(piece.name) is piece:
            del self._by_name[piece.name]

    def keep(self, piece: Piece) -> None:
        """A whole copy names the piece: when no session holds it, it is dropped last."""
        if piece.file is not None:
            piece.file.copies += 1
            return
        shelved = self._idle.get(piece.name) is piece
        if shelved:
            self._unshelve(piece)
        piece.copies += 1
        if shelved:
            self._shelve(piece)

    def unkeep(self, piece: Piece) -> None:
        """The copy is out of date."""
        if piece.file is not None:
            piece.file.copies -= 1
            self._settle(piece.file)
            return
        shelved = self._of_copies.get(piece.name) is piece
        if shelved:
            self._unshelve(piece)
        piece.copies -= 1
        if shelved:
            self._shelve(piece)

    def add(self, piece: Piece) -> Piece:
        """Add a new piece whose bytes are on the host now. When equal bytes were there already, the new ones
        are freed."""
        found = self.find(piece.name)
        if found is None:
            found = self._by_name[piece.name] = piece
        else:
            self.arena.give_back(piece.offset, piece.nbytes)
        return found

    def reserve_file(self, name: str, session: str, nbytes: int) -> PieceFile | None:
        """A new file on the disk for pieces of this session, None when the disk is full."""
        if self.disk_directory is None or not self._take_disk(nbytes):
            return None
        return PieceFile(self.disk_directory / name, nbytes, owned=True, session=session)

    def extend_file(self, file: PieceFile | None, session: str, nbytes: int) -> PieceFile | None:
        """Reserve space for a piece that the host has no space for: at the end of ``file``, or in a new one
        where that is None, or gone. None when the disk is full. The file stays at least until
        :meth:`in_extended` or :meth:`shorten_file`."""
        if file is None or not (file.pieces or file.copies):
            file = self.reserve_file(f"session-{os.getpid()}-{uuid.uuid4().hex}.pieces", session, nbytes)
        elif self._take_disk(nbytes, file):
            file.nbytes += nbytes
        else:
            return None
        if file is not None:
            file.pieces += 1
            self._idle_files.pop(id(file), None)
        return file

    def _take_disk(self, nbytes: int, growing: PieceFile | None = None) -> bool:
        """Count bytes on the disk, if there is space: files that only whole copies name give way, the oldest
        first, but for the ``growing`` one."""
        while self._disk_bytes + nbytes > self.disk_bytes_max:
            oldest = next((file for file in self._idle_files.values() if file is not growing), None)
            if oldest is None:
                return False
            self.remove_file(oldest)
        self._disk_bytes += nbytes
        return True

    def in_extended(self, piece: Piece, file: PieceFile, offset: int) -> Piece:
        """The same bytes, where :meth:`extend_file` reserved space for them."""
        stored = self.in_file(piece, file, offset)
        file.pieces -= 1
        return stored

    def shorten_file(self, file: PieceFile, nbytes: int) -> None:
        """Give back space at the end of a file that could not be written."""
        file.pieces -= 1
        if file.pieces or file.copies:
            self._disk_bytes -= nbytes
            file.nbytes -= nbytes
            self._settle(file)
        else:
            self.remove_file(file)

    def _settle(self, file: PieceFile) -> None:
        """Remove a file that nothing names; keep it as long as there is space where only copies do."""
        if not file.pieces and not file.copies:
            self.remove_file(file)
        elif not file.pieces and file.owned:
            self._idle_files[id(file)] = file

    def remove_file(self, file: PieceFile) -> None:
        self._idle_files.pop(id(file), None)
        if file.owned and file.nbytes:
            self._disk_bytes -= file.nbytes
            file.nbytes = 0
            file.path.unlink(missing_ok=True)

    def in_file(self, piece: Piece, file: PieceFile, offset: int) -> Piece:
        """The same bytes, in a file."""
        file.pieces += 1
        self._count_on_disk(file, piece.nbytes)
        return Piece(piece.name, piece.fingerprint, piece.nbytes, offset, file)

    def hold(self, piece: Piece) -> Piece:
        piece.references += 1
        return piece

    def drop(self, piece: Piece) -> None:
        piece.references -= 1
        if piece.references:
            return
        if piece.file is not None:
            piece.file.pieces -= 1
            self._count_on_disk(piece.file, -piece.nbytes)
            self._settle(piece.file)
            return
        if self._by_name.get(piece.name) is piece:
            self._shelve(piece)
        else:
            self.arena.give_back(piece.offset, piece.nbytes)

    def _count_on_disk(self, file: PieceFile, nbytes: int) -> None:
        if not file.owned:
            return
        left = self.on_disk_bytes.get(file.session, 0) + nbytes
        if left:
            self.on_disk_bytes[file.session] = left
        else:
            del self.on_disk_bytes[file.session]

    def place(self, piece: Piece) -> tuple[str, int]:
        """Path and offset of its bytes, for other processes."""
        if piece.file is not None:
            return str(piece.file.path), piece.offset
        return str(self.arena.path), piece.offset

    def read(self, piece: Piece) -> torch.Tensor:
        """The bytes of a held piece: those of the arena themselves, or read from its file. Raises OSError
        when the file is gone or too short."""
        if piece.file is None:
            return self.arena.view(piece.offset, piece.nbytes)
        content = bytearray(piece.nbytes)
        with piece.file.path.open("rb", buffering=0) as file:
            count = os.preadv(file.fileno(), [content], piece.offset)
        if count != piece.nbytes:
            raise OSError(f"{piece.file.path} ends at {piece.offset + count}, within a piece")
        return torch.frombuffer(content, dtype=torch.uint8)
