"""Names of the pieces of parked state, by their content.

A piece of a CPU's memory is named by the BLAKE3 of its bytes. An accelerator would wait for that: there, a
piece is named by sums that the device takes at the speed of its memory, before the copy, and by its length.

The sums are a multilinear hash (Carter and Wegman, "Universal classes of hash functions", 1979), twice and in
two levels: each row of 16-bit lanes times the same random weights, then the rows' sums times weights of their
own, modulo 2^64. Two lanes differ by at most 15 factors of two, so that one hash of two different pieces is
equal for one choice of weights in 2^42, and both for one in 2^84. The weights are known, so that a user could
make two pieces of one name; only the user's own group would read one for the other.
"""

from __future__ import annotations

from functools import lru_cache

import blake3
import numpy as np
import numpy.typing as npt

LANES = 2048
"""16-bit lanes of a row."""
ROW_BYTES = 2 * LANES
SUMS = 2
_SEED = 0x646A696E6E
_ROWS_SEED = 0x6C616270
_BLAKE3_BYTES = 32


def named_by_sums(sums: bytes, nbytes: int) -> bytes:
    """Return the name of a piece of so many bytes. Zeros at the end do not change the sums."""
    return sums + nbytes.to_bytes(8, "little")


def has_content(name: bytes, content: bytes) -> bool:
    """Return whether a piece of this name has these bytes."""
    if len(name) == _BLAKE3_BYTES:
        return blake3.blake3(content).digest() == name
    return named_by_sums(sums_of(content), len(content)) == name


def sums_of(content: bytes | memoryview) -> bytes:
    """Return the sums of a piece, as its device takes them."""
    padded = np.zeros(row_count(len(content)) * ROW_BYTES, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = padded.view(np.int16).reshape(-1, LANES)
    weights, of_rows = lane_weights(), row_weights(len(rows))
    found = [(rows * weights[one]).sum(1, dtype=np.int64) @ of_rows[one] for one in range(SUMS)]
    return np.array(found, np.int64).tobytes()


def row_count(nbytes: int) -> int:
    return max(1, -(-nbytes // ROW_BYTES))


@lru_cache(1)
def lane_weights() -> npt.NDArray[np.int64]:
    """Return the weights of a row's lanes: one row for each sum."""
    return _random(_SEED, LANES)


@lru_cache(8)
def row_weights(rows: int) -> npt.NDArray[np.int64]:
    """Return the weights of so many rows: the first ones of any larger number."""
    return _random(_ROWS_SEED, rows)


def _random(seed: int, count: int) -> npt.NDArray[np.int64]:
    """numpy keeps what its bit generators draw the same over its versions (NEP 19)."""
    drawn = np.random.PCG64(seed).random_raw(SUMS * count).reshape(count, SUMS)
    return np.ascontiguousarray(drawn.T).view(np.int64)
