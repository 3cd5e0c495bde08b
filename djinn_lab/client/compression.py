"""Whether to compress what is sent: by what a sample of it gains and costs, beside the link's rate."""

from __future__ import annotations

from time import perf_counter

import zstandard

LEVEL = 1
SAMPLE_BYTES = 16 * 2**10
GAIN_MIN = 0.1
"""Of the bytes: less is not worth the pool's time to decompress."""
FASTEST_LINK = 100e6
"""Bytes per second from which on not even a sample is worth its time."""


def compressed(data: memoryview, link_bytes_per_s: float) -> bytes | None:
    """Return the compressed bytes where they arrive sooner, None where not, or where the link's rate is not
    known (0)."""
    if not 0 < link_bytes_per_s < FASTEST_LINK:
        return None
    middle = max(0, data.nbytes // 2 - SAMPLE_BYTES // 2)
    sample = data[middle : middle + SAMPLE_BYTES]
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    began_s = perf_counter()
    gain = 1 - len(compressor.compress(sample)) / sample.nbytes
    seconds_a_byte = (perf_counter() - began_s) / sample.nbytes
    if gain < GAIN_MIN or seconds_a_byte > gain / link_bytes_per_s:
        return None
    found = compressor.compress(data)
    return found if len(found) < (1 - GAIN_MIN) * data.nbytes else None
