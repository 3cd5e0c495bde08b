"""Each piece of a parked session is on two hosts, whatever happens to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from djinn_lab.pool.launchers.adoption import ManifestStorage
from djinn_lab.pool.launchers.ray_cluster.files import Content
from djinn_lab.pool.launchers.ray_cluster.moves import NamedPiece
from djinn_lab.pool.launchers.ray_cluster.second_copies import SecondCopies
from djinn_lab.pool.launchers.ray_cluster.wire import Piece

NBYTES = 1000


def manifest_of(path: str, *names: bytes) -> bytes:
    """Return a manifest of pieces one after the other in a file."""
    pieces = [(name, b"", NBYTES, 0, number * NBYTES) for number, name in enumerate(names)]
    storage = ManifestStorage(NBYTES * len(pieces), NBYTES, None, None, pieces)  # type: ignore[arg-type]
    return msgspec.msgpack.encode({"files": [path], "storages": [storage]})


@dataclass(eq=False)
class FakeHost:
    """Keeps what it is asked to while it is ``up`` and the test does not say that it is ``dying``."""

    name: str
    space: int = 10**6
    up: bool = True
    dying: bool = False
    kept: dict[str, list[bytes]] = field(default_factory=dict)
    reads: int = 0
    machine: str = ""

    @property
    def node(self) -> str | None:
        return (self.machine or self.name) if self.up else None

    @property
    def second_copies_bytes_max(self) -> int:
        return self.space if self.up else 0

    def has(self, path: str) -> bool:
        return self.up and path.startswith(f"/{self.name}/")

    def keeps(self, path: str) -> bool:
        return self.has(path)

    async def read(self, pieces: tuple[Piece, ...]) -> Content:
        self.reads += 1
        return Content(sum(piece.nbytes for piece in pieces))

    async def keep(self, name: str, pieces: Sequence[NamedPiece], content: Content) -> str:
        await asyncio.sleep(0)
        if self.dying or not self.up:
            raise OSError(f"host {self.name} is lost")
        path = f"/{self.name}/{name}"
        self.kept[path] = [piece.name for piece in pieces]
        return path

    def drop(self, paths: Iterable[str]) -> None:
        for path in paths:
            del self.kept[path]


def kept_by(host: FakeHost) -> set[bytes]:
    return {name for names in host.kept.values() for name in names}


def test_a_piece_is_sent_once_to_the_host_with_the_most_space() -> None:
    home, small, large = FakeHost("a"), FakeHost("b", space=10**5), FakeHost("c")
    copies = SecondCopies()
    asyncio.run(copies.make(manifest_of("/a/one", b"x", b"y"), [home, small, large]))
    asyncio.run(copies.make(manifest_of("/a/two", b"x", b"z"), [home, small, large]))
    assert kept_by(large) == {b"x", b"y", b"z"}
    assert not small.kept
    assert copies.nbytes[large] == 3 * NBYTES
    assert not copies.behind


def test_another_host_takes_what_a_dying_one_cannot() -> None:
    home, dying, other = FakeHost("a"), FakeHost("b", dying=True), FakeHost("c", space=10**5)
    copies = SecondCopies()
    asyncio.run(copies.make(manifest_of("/a/one", b"x"), [home, dying, other]))
    assert kept_by(other) == {b"x"}
    assert home.reads == 1
    assert not copies.behind


def test_a_second_copy_is_on_another_machine_and_not_with_a_host_that_moved_to_this_one() -> None:
    home, moved, other = FakeHost("a"), FakeHost("b", machine="a"), FakeHost("c", space=10**5)
    copies = SecondCopies()
    asyncio.run(copies.make(manifest_of("/a/one", b"x"), [home, moved, other]))
    assert kept_by(other) == {b"x"}
    assert not moved.kept
    other.up = False
    copies.lost(other)
    with pytest.raises(OSError, match="no other machine serves now"):
        asyncio.run(copies.make(manifest_of("/a/one", b"x"), [home, moved, other]))
    assert copies.behind


@pytest.mark.parametrize(
    ("space", "up", "said"), [(10, True, "left for second copies"), (10**6, False, "no other machine serves")]
)
def test_what_no_host_takes_is_said_and_made_once_one_can(space: int, up: bool, said: str) -> None:
    home, other = FakeHost("a"), FakeHost("b", space=space, up=up)
    copies = SecondCopies()
    manifest = manifest_of("/a/one", b"x")
    with pytest.raises(OSError, match=said):
        asyncio.run(copies.make(manifest, [home, other]))
    assert copies.behind
    copies.behind = False
    other.space, other.up = 10**6, True
    asyncio.run(copies.make(manifest, [home, other]))
    assert kept_by(other) == {b"x"}
    assert not copies.behind


def test_what_takes_too_long_is_still_to_be_made() -> None:
    async def story() -> None:
        copies = SecondCopies()
        making = asyncio.ensure_future(
            copies.make(manifest_of("/a/one", b"x"), [FakeHost("a"), FakeHost("b")])
        )
        await asyncio.sleep(0)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        assert copies.behind

    asyncio.run(story())


def test_what_a_lost_host_kept_is_made_again_by_the_next() -> None:
    home, first, second = FakeHost("a"), FakeHost("b"), FakeHost("c", space=10**5)
    copies = SecondCopies()
    manifest = manifest_of("/a/one", b"x")
    asyncio.run(copies.make(manifest, [home, first, second]))
    first.up = False
    copies.lost(first)
    asyncio.run(copies.make(manifest, [home, first, second]))
    assert kept_by(second) == {b"x"}


def test_a_file_goes_once_no_manifest_names_any_of_its_pieces() -> None:
    home, other = FakeHost("a"), FakeHost("b")
    copies = SecondCopies()
    first, second = manifest_of("/a/one", b"x", b"y"), manifest_of("/a/two", b"y")
    asyncio.run(copies.make(first, [home, other]))
    copies.sweep([second])
    assert kept_by(other) == {b"x", b"y"}
    copies.sweep([])
    assert not other.kept
    assert not copies.nbytes
