"""What a user does on a real pool with a GPU: training, a dead worker, parking, memory, faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from real_pool import PoolUnderTest, kill_worker
from torch import nn

from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile

GIB = 2**30
Act = Callable[[PoolUnderTest, Session], str]


def _model() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 8)).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=0.01), torch.randn(32, 64).cuda()


def _steps(parts: tuple[nn.Module, torch.optim.Optimizer, torch.Tensor], count: int) -> float:
    model, optimizer, x = parts
    for _ in range(count):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def trains_alike_through_a_death(pool: PoolUnderTest, session: Session) -> str:
    """With dropout: the second run loses its worker between two cells."""
    found = []
    for dies in (False, True):
        with session.capture("begin"):
            parts = _model()
            _steps(parts, 20)
        if dies:
            kill_worker(pool, "cuda:0")
        with session.capture("end"):
            found.append(_steps(parts, 20))
    return "equal bits" if found[0] == found[1] else f"other bits: {found}"


def one_op_cell(pool: PoolUnderTest, session: Session) -> str:
    with session.capture("make"):
        x = torch.ones(1000, 1000).cuda()
    times = []
    for _ in range(30):
        began = time.perf_counter()
        with session.capture("one"):
            value = (x + 1).sum().item()
        times.append(time.perf_counter() - began)
    return f"{value}, median {1e3 * sorted(times)[15]:.2f} ms"


def larger_than_the_device(pool: PoolUnderTest, session: Session) -> str:
    with session.capture("large"):
        weights = [torch.full((64, 2**20), float(number)).cuda() for number in range(12)]  # 3 GiB of 2
        total = torch.zeros(2**20).cuda()
        for weight in weights:
            total = total + weight.sum(0)
        found = total[0].item()
    return "right" if found == 64.0 * sum(range(12)) else f"wrong: {found}"


def index_out_of_range(pool: PoolUnderTest, session: Session) -> str:
    with session.capture("good"):
        kept = torch.arange(9.0).cuda()
    try:
        with session.capture("bad"):
            table, places = torch.randn(9, 4).cuda(), torch.tensor([3, 400]).cuda()
            found = torch.nn.functional.embedding(places, table).sum().item()
    except Exception as error:  # noqa: BLE001 - what a user would see is the result
        said = f"{type(error).__name__}: {str(error)[:300]}"
    else:
        said = f"no error: {found}"
    with session.capture("after"):
        after = kept.sum().item()
    return f"{said} | after it {after}"


def two_sessions(pool: PoolUnderTest, session: Session) -> str:
    """A second session's weights park and come back."""
    other = Session(pool.info.url, pool.info.token, default_profile(), "other")
    with session.capture("mine"):
        mine = torch.randn(300, 2**20, generator=torch.Generator().manual_seed(1)).cuda()  # 1.2 GiB
        before = mine.sum().item()
    with other.capture("theirs"):
        theirs = torch.ones(300, 2**20).cuda()
        total = theirs.sum().item()
    with session.capture("mine again"):
        after = mine.sum().item()
    other.close()
    return f"{'equal bits' if before == after else 'other bits'}, {total}"


def repeated_cell(pool: PoolUnderTest, session: Session) -> str:
    """A cell with a tolerance, until the pool has decided what becomes of its region."""
    with session.capture("make"):
        x, weights = torch.randn(64, 512).cuda(), [torch.randn(512, 512).cuda() / 23 for _ in range(8)]
    found, said = set(), ""
    for _ in range(200):
        with session.capture("layers", tolerance=1e-3) as cell:
            made = x
            for weight in weights:
                made = torch.tanh(made @ weight) + made
            found.add(round(made.sum().item(), 1))
        said = cell.report.compiled
        if "largest difference" in said or "op by op: " in said:
            break
        time.sleep(0.5 if "being compiled" in said else 0.0)
    return f"{said} | {len(found)} different sums"


ACTS: tuple[Act, ...] = (
    one_op_cell,
    trains_alike_through_a_death,
    two_sessions,
    larger_than_the_device,
    index_out_of_range,
    repeated_cell,
)


def gpu_pool(directory: Path, **options: str) -> PoolUnderTest:
    return PoolUnderTest(directory, devices="cuda", memory_bytes=2 * GIB, host_bytes=8 * GIB, **options)


def walk(pool: PoolUnderTest, acts: Sequence[Act] = ACTS) -> dict[str, str]:
    found = {}
    for act in acts:
        session = connect(name=act.__name__)
        try:
            found[act.__name__] = act(pool, session)
        except Exception as error:  # noqa: BLE001 - each is reported
            found[act.__name__] = f"FAILED {type(error).__name__}: {str(error)[:600]}"
        finally:
            session.close()
        print(act.__name__, found[act.__name__], flush=True)
    return found
