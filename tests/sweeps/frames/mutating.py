"""Frames for a pool's WebSocket: random ones, and those of a real session with changes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1,
        2**31,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        0.0,
        -0.5,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "x",
        "0" * 64,
        "../../etc/passwd",
        "\0",
        "é",
        "a" * 5000,
        b"",
        b"\xff" * 100,
        [],
        {},
        [[]],
        {"a": 1},
    ),
)
TAGS = (
    "hello",
    "query_blobs",
    "blob_stored",
    "submit",
    "finish",
    "cancel",
    "signal",
    "release",
    "close",
    "job",
    "?",
)
DEEP = 50_000
Frame = bytes | str


def random_frame(random: Random, recorded: Sequence[bytes]) -> Frame:
    """Draw a frame. ``recorded``: the messages of a real session."""
    kind = random.randrange(10)
    known = random.choice(recorded)
    if kind == 0:
        return random.randbytes(random.choice((0, 1, 7, 100, 5000)))
    if kind == 1:
        return known[: random.randrange(len(known) + 1)]
    if kind == 2:
        return _flipped(random, known)
    if kind == 3:
        return known  # in a wrong place
    if kind == 4:
        return random.choice(("", "hello", '{"type": "hello"}', "x" * 10_000))
    if kind == 5:
        return random.choice(
            (b"\x91" * DEEP, b"\x81\xa1a" * DEEP, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
        )
    return _changed(random, known)


def _flipped(random: Random, known: bytes) -> bytes:
    found = bytearray(known)
    for _ in range(random.randrange(1, 5)):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


def _changed(random: Random, known: bytes) -> bytes:
    """Change one to three fields of a message: another value or kind, no value, or one more."""
    message: dict[str, Any] = msgspec.msgpack.decode(known)
    for _ in range(random.randrange(1, 4)):
        field = random.choice(list(message)) if message else "type"
        match random.randrange(6):
            case 0:
                message["type"] = random.choice(TAGS)
            case 1:
                message.pop(field, None)
            case 2:
                message[random.choice(("new", "terms", "session", "values"))] = random.choice(ODD)
            case 3 if isinstance(message.get(field), bytes) and message[field]:
                message[field] = _flipped(random, message[field])
            case 4 if isinstance(message.get(field), list):
                message[field] = [*message[field], random.choice(ODD)] * random.choice((1, 3))
            case _:
                message[field] = random.choice(ODD)
    return msgspec.msgpack.encode(message)
