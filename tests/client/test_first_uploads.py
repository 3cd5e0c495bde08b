"""Large tensors that a cell uses for the first time: intact, sent once, nothing left after a failure."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest

from djinn_lab.client import blobs
from djinn_lab.client.session import Session
from djinn_lab.errors import Refused
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN

pytestmark = pytest.mark.processes

LARGE = UNHASHED_BYTES_MIN
COUNT = LARGE // 4


def random(nbytes: int, seed: int = 0) -> torch.Tensor:
    """Make random floats without NaN."""
    return torch.rand(nbytes // 4, generator=torch.Generator().manual_seed(seed))


def stored(pool: PoolUnderTest) -> int:
    return int(pool.rest.status().blobs.count)


INPUTS = {
    "just below": lambda: random(LARGE - 4),
    "just large": lambda: random(LARGE),
    "odd bytes": lambda: torch.arange(LARGE + 3).to(torch.int8),
    "longer than a piece": lambda: random(2 * blobs.CHUNK_BYTES + 4),
    "bool": lambda: random(4 * LARGE + 20) > 0.5,
    "bfloat16": lambda: random(2 * LARGE).to(torch.bfloat16),
    "complex": lambda: torch.complex(random(LARGE), random(LARGE, 1)),
    "transposed": lambda: random(4 * 1100 * 1100).view(1100, 1100).t(),
    "every second": lambda: random(2 * LARGE + 8)[::2],
    "a view with an offset": lambda: random(LARGE + 4000)[7:-5],
    "expanded": lambda: random(LARGE, 5).expand(2, COUNT),
    "nothing but zeros": lambda: torch.zeros(COUNT + 1),
}


@pytest.mark.parametrize("name", INPUTS)
def test_large_input_arrives_bit_for_bit(session: Session, name: str) -> None:
    x = INPUTS[name]()
    before = x.clone()
    with session.capture() as cell:
        y = x.clone()
    x.untyped_storage().fill_(0)  # what the host does later changes nothing
    assert torch.equal(y.cpu(), before)
    assert y.stride() == before.stride()
    assert cell.report.bytes_up >= LARGE - 4


def test_tensor_changed_between_cells_is_uploaded_again(session: Session) -> None:
    x = random(LARGE, 2)
    sums = []
    for _ in range(3):
        with session.capture():
            total = x.double().sum()
        sums.append(total.item() - x.double().sum().item())
        x[100] += 1
    assert sums == [0, 0, 0]


def test_equal_tensors_are_stored_once_for_all_sessions(pool: PoolUnderTest) -> None:
    x = random(LARGE, 3)
    before = stored(pool)
    moved = []
    for user in (None, None, "upload-ann"):
        with pool.session(user) as session:
            with session.capture() as cell:
                y = x + 1
            assert torch.equal(y.cpu(), x + 1)
            moved.append(cell.report.bytes_up)
    assert stored(pool) == before + 1
    assert moved[0] > x.nbytes
    assert moved[1] < 20_000, "the pool had it from this user"
    assert moved[2] > x.nbytes, "another user uploads it again"


def test_interrupt_in_the_middle_of_an_upload_leaves_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(str(session.welcome.blob_directory))
    x = random(3 * blobs.CHUNK_BYTES, 4)
    opened: list[int] = []
    write = blobs.write_blob

    def interrupted(path: Path, data: memoryview) -> None:
        write(path, data[: blobs.CHUNK_BYTES])
        opened.append(path.stat().st_size)
        signal.raise_signal(signal.SIGINT)
        write(path, data)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(blobs, "write_blob", interrupted)
            with pytest.raises(KeyboardInterrupt), session.capture():
                x.sum().item()
    finally:
        signal.signal(signal.SIGINT, before)
    assert opened == [blobs.CHUNK_BYTES]
    assert list(directory.iterdir()) == []
    with session.capture():
        y = x + 1
    assert torch.equal(y.cpu(), x + 1)


def test_upload_beyond_the_limit_is_refused_and_later_uploads_succeed(tmp_path: Path) -> None:
    def answer(session: Session, x: torch.Tensor) -> Any:
        with session.capture():
            y = x + 1
        return y.cpu()

    with PoolUnderTest(tmp_path, f"{KIND}:1", blob_bytes_max=2 * LARGE) as pool, pool.session() as session:
        with pytest.raises(Refused, match=r"keeps at most 8\.0 MiB of uploaded tensors"):
            answer(session, random(2 * LARGE + 4))
        for seed in range(4):  # older ones are evicted
            x = random(LARGE, seed)
            assert torch.equal(answer(session, x), x + 1)
        assert stored(pool) <= 2
