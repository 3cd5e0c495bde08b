"""Changes encoded programs: their bytes, or one part of their structure."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import msgspec

from djinn_lab.srg.ops import allowed_ops

INTEGERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
NUMBERS = (0.0, -0.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"))
WORDS = (
    "",
    "x",
    "aten.",
    "aten.add.Tensor",
    "os.system.default",
    "float32",
    "quint8",
    "../x",
    "\0",
    "é" * 40,
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, b"", b"\0" * 8, [[]], [None], {"": 0}, [0] * 70)

Path = tuple[Any, ...]


def mutated(encoded: bytes, choose: random.Random) -> bytes:
    """Return the program with one to three changes; mostly of its structure, since changed bytes rarely
    decode."""
    changes = choose.choice((1, 1, 2, 3))
    if choose.random() < 0.15:
        for _ in range(changes):
            encoded = _other_bytes(encoded, choose)
        return encoded
    tree = msgspec.msgpack.decode(encoded)
    for _ in range(changes):
        _change(tree, choose)
    try:
        return msgspec.msgpack.encode(tree)
    except OverflowError:  # doubled past what MessagePack has
        return encoded


def _other_bytes(encoded: bytes, choose: random.Random) -> bytes:
    content = bytearray(encoded)
    at = choose.randrange(len(content))
    match choose.randrange(4):
        case 0:
            content[at] ^= 1 << choose.randrange(8)
        case 1:
            del content[at:]
        case 2:
            content[at:at] = choose.randbytes(choose.randrange(1, 9))
        case _:
            del content[at : at + choose.randrange(1, 9)]
    return bytes(content)


def _change(tree: Any, choose: random.Random) -> None:
    """Change one part in place: replace it by a hostile one or by another part, drop, double or swap it."""
    paths = list(_paths(tree, ()))
    if not paths:
        return
    path = choose.choice(paths)
    parent = _at(tree, path[:-1])
    key, part = path[-1], _at(tree, path)
    ways: list[Callable[[], Any]] = [
        *[lambda: _hostile(part, choose)] * 4,
        lambda: copy.deepcopy(_at(tree, choose.choice(paths))),
    ]
    if isinstance(parent, list) and choose.random() < 0.3:
        other = choose.randrange(len(parent))
        match choose.randrange(3):
            case 0:
                del parent[key]
            case 1:
                parent.insert(other, copy.deepcopy(part))
            case _:
                parent[key], parent[other] = parent[other], parent[key]
        return
    parent[key] = choose.choice(ways)()


def _hostile(part: Any, choose: random.Random) -> Any:
    """Return something of the part's own kind, mostly."""
    if choose.random() < 0.15:
        return choose.choice((*INTEGERS, *NUMBERS, *WORDS, *OTHERS))
    match part:
        case bool():
            return not part
        case int():
            return choose.choice((*INTEGERS, part + 1, part - 1, -part, 2 * part))
        case float():
            return choose.choice((*NUMBERS, -part))
        case str():
            return choose.choice((*WORDS, *choose.sample(_operators(), 8)))
        case bytes():
            return choose.choice((b"", part[:-1], part + b"\0", part[::-1], part * 2))
        case list():
            return choose.choice(([], part * 2, part[::-1], part[1:]))
        case _:
            return choose.choice(OTHERS)


def _operators() -> list[str]:
    return sorted(allowed_ops())


def _paths(part: Any, path: Path) -> Any:
    """Yield the way to each part but the whole."""
    if path:
        yield path
    items = enumerate(part) if isinstance(part, list) else part.items() if isinstance(part, dict) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree
