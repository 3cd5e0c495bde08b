"""Pieces of parked state are known by their bytes: no two that differ have one name, and host and device
agree on it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.protocol.piece_names import ROW_BYTES, has_content, named_by_sums, row_weights, sums_of
from djinn_lab.worker.accelerator.link import SumWeights, weighted_sums

WEIGHTS = SumWeights.on(torch.device("cpu"), 64 * ROW_BYTES)


def on_device(content: bytes, offset: int = 0) -> bytes:
    memory = torch.frombuffer(bytearray(offset) + bytearray(content), dtype=torch.uint8)[offset:]
    return weighted_sums(memory, WEIGHTS).numpy().tobytes()


def name_of(content: bytes) -> bytes:
    return named_by_sums(on_device(content), len(content))


@given(st.integers(1, 3 * ROW_BYTES + 5), st.integers(0, 3), st.randoms(use_true_random=False))
def test_host_and_device_take_the_same_sums(nbytes: int, offset: int, chance: random.Random) -> None:
    content = chance.randbytes(nbytes)
    assert on_device(content, offset) == sums_of(content)
    assert has_content(name_of(content), content)
    assert not has_content(name_of(content), content + b"\0")
    assert has_content(blake3(content).digest(), content)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_every_change_changes_the_name(content: bytes, data: st.DataObject) -> None:
    flipped = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    assert (name_of(flipped) == name_of(content)) == (bytes(flipped) == content)
    words = [content[at : at + 8] for at in range(0, len(content) // 8 * 8, 8)]
    order = data.draw(st.permutations(words))
    if words:
        assert (name_of(b"".join(order)) == name_of(b"".join(words))) == (order == words)


def masks() -> list[npt.NDArray[np.int64]]:
    """All index masks of two ones among 64: many have the same sum of places."""
    found = []
    for places in itertools.combinations(range(64), 2):
        found.append(np.zeros(64, np.int64))
        found[-1][list(places)] = 1
    return found


@pytest.mark.parametrize("kind", ["int64", "bool", "float32", "bfloat16 signs", "zeros of each length"])
def test_contents_that_differ_in_little_have_names_of_their_own(kind: str) -> None:
    ones = [torch.from_numpy(mask) for mask in masks()]
    if kind == "zeros of each length":
        contents = [bytes(length) for length in range(1, 500)]
    elif kind == "bfloat16 signs":
        contents = [(1 - 2 * one).bfloat16().view(torch.uint8).numpy().tobytes() for one in ones]
    else:
        contents = [one.to(getattr(torch, kind)).view(torch.uint8).numpy().tobytes() for one in ones]
    assert len({name_of(content) for content in contents}) == len(contents)


def test_names_stay_the_same_over_versions() -> None:
    """A pool that is started again restores what an earlier one parked."""
    assert sums_of(b"djinn lab").hex() == "488eaa761caa129bd8b59a8ea3b2b0cc"
    assert np.array_equal(row_weights(10), row_weights(1000)[:, :10])
