"""Second copies of parked sessions: what is parked on one host is on another one's disk, too.

A copy of a session is reported to the pool once its pieces are on a second host: so the loss of a host costs
no more than the loss of a worker. Pieces are known by their names, which the host that keeps them checks;
a piece is sent once, whatever number of copies names it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from djinn_lab.pool.launchers.ray_cluster.files import Content
from djinn_lab.pool.launchers.ray_cluster.moves import NamedPiece, named_pieces
from djinn_lab.pool.launchers.ray_cluster.wire import Piece
from djinn_lab.units import format_bytes

log = logging.getLogger(__name__)


class KeepingHost(Protocol):
    """A host that has what its workers parked, and second copies of what others parked."""

    name: str

    @property
    def node(self) -> str | None:
        """Return the node where it is now, which it may share with another host; None while it is lost."""

    @property
    def second_copies_bytes_max(self) -> int:
        """Return how many bytes of second copies it may keep now; 0 while it is lost."""

    def has(self, path: str) -> bool:
        """Return whether a file of a parked session is on this host."""

    def keeps(self, path: str) -> bool:
        """Return whether a file is on this host that it reads for others."""

    async def read(self, pieces: tuple[Piece, ...]) -> Content:
        """Raises OSError where they are gone."""

    async def keep(self, name: str, pieces: Sequence[NamedPiece], content: Content) -> str:
        """Write a file of second copies, and return its path. Raises OSError where they are not what their
        names say, or where there is no space."""

    def drop(self, paths: Iterable[str]) -> None:
        """Have files of second copies removed."""


FILE_BYTES = 256 * 2**20
"""About so much goes to another host at once, and is removed at once."""


class Kept(NamedTuple):
    host: KeepingHost
    piece: Piece


class SecondCopies:
    """Which host keeps second copies of which pieces. ``behind``: some could not be made since that was last
    set to False."""

    def __init__(self) -> None:
        self.behind = False
        self._kept: dict[bytes, list[Kept]] = {}
        """By the pieces' names."""
        self._nbytes: dict[tuple[KeepingHost, str], int] = {}
        """Of each file."""

    async def make(self, manifest: bytes, hosts: Sequence[KeepingHost]) -> None:
        """Have another host keep each piece of a manifest that one host only has. Raises OSError where that
        is not possible."""
        try:
            await self._make(manifest, hosts)
        except BaseException:  # also where it took too long
            self.behind = True
            raise

    async def _make(self, manifest: bytes, hosts: Sequence[KeepingHost]) -> None:
        alone: dict[KeepingHost, list[tuple[NamedPiece, Piece]]] = {}
        for piece in {one.name: one for one in named_pieces(manifest)}.values():
            having = self.holders(piece, hosts)
            if len({host.node for host in having}) == 1:
                host, place = next(iter(having.items()))
                alone.setdefault(host, []).append((piece, place))
        for source, pieces in alone.items():
            others = [one for one in hosts if one.node not in (None, source.node)]
            if not others and len(hosts) > 1:
                raise OSError("no other machine serves now")
            for batch in _batches(pieces) if others else ():
                await self._copy(source, batch, others)

    def found(self, host: KeepingHost, pieces: Iterable[NamedPiece]) -> None:
        """Note what a host has of a dead pool."""
        for name, place in set(pieces):
            self._nbytes[host, place.path] = self._nbytes.get((host, place.path), 0) + place.nbytes
            self._kept.setdefault(name, []).append(Kept(host, place))

    async def _copy(
        self,
        source: KeepingHost,
        pieces: Sequence[tuple[NamedPiece, Piece]],
        others: Sequence[KeepingHost],
    ) -> None:
        """Have one of the others keep these pieces: the one with the most space, unless it fails."""
        nbytes = sum(place.nbytes for _, place in pieces)
        error = OSError(f"no other machine has {format_bytes(nbytes)} left for second copies")
        content: Content | None = None
        for host in sorted(others, key=self._free_bytes, reverse=True):
            if self._free_bytes(host) < nbytes:
                break
            content = content or await source.read(tuple(place for _, place in pieces))
            try:
                path = await host.keep(uuid.uuid4().hex, [piece for piece, _ in pieces], content)
            except OSError as failed:
                error = failed
            else:
                self._note(host, path, pieces)
                return
        raise error

    def _note(self, host: KeepingHost, path: str, pieces: Sequence[tuple[NamedPiece, Piece]]) -> None:
        """Note that a host keeps these pieces, one after the other in a file."""
        nbytes = sum(place.nbytes for _, place in pieces)
        self._nbytes[host, path] = nbytes
        offset = 0
        for piece, place in pieces:
            kept = Kept(host, Piece(path, offset, place.nbytes))
            self._kept.setdefault(piece.name, []).append(kept)
            offset += place.nbytes

    def holders(self, piece: NamedPiece, hosts: Iterable[KeepingHost]) -> dict[KeepingHost, Piece]:
        """Return where a piece is on the hosts that have it: parked, or as a second copy."""
        parked = {host: piece.place for host in hosts if host.has(piece.place.path)}
        return parked | {host: place for host, place in self._of(piece.name) if host not in parked}

    def lost(self, host: KeepingHost) -> None:
        """Forget what a lost host kept."""
        self._forget({key for key in self._nbytes if key[0] is host})

    def sweep(self, manifests: Iterable[bytes]) -> None:
        """Have files removed of which no manifest names any piece."""
        if not self._kept:
            return
        needed: set[tuple[KeepingHost, str]] = set()
        for manifest in manifests:
            for piece in named_pieces(manifest):
                needed |= {(one.host, one.piece.path) for one in self._of(piece.name)}
        free = self._nbytes.keys() - needed
        by_host: dict[KeepingHost, list[str]] = {}
        for host, path in free:
            by_host.setdefault(host, []).append(path)
        for host, paths in by_host.items():
            host.drop(paths)
        self._forget(free)

    @property
    def nbytes(self) -> Mapping[KeepingHost, int]:
        """Return how many bytes of second copies each host keeps."""
        total: dict[KeepingHost, int] = {}
        for (host, _), nbytes in self._nbytes.items():
            total[host] = total.get(host, 0) + nbytes
        return total

    def _of(self, name: bytes) -> list[Kept]:
        return [one for one in self._kept.get(name, ()) if one.host.keeps(one.piece.path)]

    def _free_bytes(self, host: KeepingHost) -> int:
        return host.second_copies_bytes_max - self.nbytes.get(host, 0)

    def _forget(self, files: Iterable[tuple[KeepingHost, str]]) -> None:
        gone = set(files)
        for key in gone:
            del self._nbytes[key]
        for name, kept in list(self._kept.items()):
            left = [one for one in kept if (one.host, one.piece.path) not in gone]
            if left:
                self._kept[name] = left
            else:
                del self._kept[name]


def _batches(pieces: Iterable[tuple[NamedPiece, Piece]]) -> Iterator[list[tuple[NamedPiece, Piece]]]:
    batch: list[tuple[NamedPiece, Piece]] = []
    nbytes = 0
    for piece, place in pieces:
        batch.append((piece, place))
        nbytes += place.nbytes
        if nbytes >= FILE_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
