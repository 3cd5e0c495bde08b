"""What a user does on a real pool with GPUs: training, a dead worker, parking, memory, faults. Each act says
whether all was right."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import torch
from real_pool import PoolUnderTest, kill_worker
from sweeps.result_file import Verdict
from torch import nn

from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile

GIB = 2**30


class Walk:
    """A pool whose devices have ``memory_bytes`` each, and a session of it."""

    def __init__(self, pool: PoolUnderTest, session: Session, device: str, memory_bytes: int) -> None:
        self.pool, self.session = pool, session
        self.device, self.memory_bytes = device, memory_bytes

    def rows(self, part: float) -> int:
        """Return how many rows of 64 KiB fill a part of the device."""
        return int(part * self.memory_bytes) // 2**16


Act = Callable[[Walk], Verdict]


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


def trains_alike_through_a_death(walk: Walk) -> Verdict:
    """With dropout: the second run loses its worker between two cells. The session wants the same bits."""
    walk.session.profile = walk.session.profile.with_value("session.numbers", "bits", "you")
    found = []
    for dies in (False, True):
        with walk.session.capture("begin"):
            parts = _model()
            _steps(parts, 20)
        if dies:
            kill_worker(walk.pool, walk.device)
        with walk.session.capture("end"):
            found.append(_steps(parts, 20))
    return Verdict(found[0] == found[1], f"losses {found}")


def one_op_cells(walk: Walk) -> Verdict:
    with walk.session.capture("make"):
        x = torch.ones(1000, 1000).cuda()
    times, values = [], set()
    for _ in range(30):
        began = time.perf_counter()
        with walk.session.capture("one"):
            values.add((x + 1).sum().item())
        times.append(time.perf_counter() - began)
    return Verdict(values == {2e6}, f"{values}, median {1e3 * sorted(times)[15]:.2f} ms")


def larger_than_the_device(walk: Walk) -> Verdict:
    with walk.session.capture("large"):
        weights = [torch.full((walk.rows(1 / 8), 2**14), float(number)).cuda() for number in range(12)]
        total = torch.zeros(2**14).cuda()
        for weight in weights:
            total = total + weight.sum(0)
        found = total[0].item()
    return Verdict(found == walk.rows(1 / 8) * sum(range(12)), f"1.5 times its memory: {found}")


def index_out_of_range(walk: Walk) -> Verdict:
    with walk.session.capture("good"):
        kept = torch.arange(9.0).cuda()
    said, named = "no error", False
    try:
        with walk.session.capture("bad"):
            table, places = torch.randn(9, 4).cuda(), torch.tensor([3, 400]).cuda()
            found = torch.nn.functional.embedding(places, table) * 2
            for _ in range(300):
                found = found + 1
            found.sum().item()
    except torch.AcceleratorError as error:
        said, named = str(error)[:300], "aten.embedding.default" in str(error)
    with walk.session.capture("after"):
        after = kept.sum().item()
    return Verdict(named and after == 36.0, f"{said} | after it {after}")


def two_sessions(walk: Walk) -> Verdict:
    """A second session's weights park and come back."""
    pool, rows = walk.pool, walk.rows(0.6)
    other = Session(pool.info.url, pool.info.token, default_profile(), "other")
    with walk.session.capture("mine"):
        mine = torch.randn(rows, 2**14, generator=torch.Generator().manual_seed(1)).cuda()
        before = mine.sum().item()
    with other.capture("theirs"):
        theirs = torch.ones(rows, 2**14).cuda()
        total = theirs.mean().item()
    with walk.session.capture("mine again"):
        after = mine.sum().item()
    other.close()
    return Verdict(before == after and total == 1.0, f"{before}, then {after}; the other's mean {total}")


def two_groups(walk: Walk) -> Verdict:
    """Two users who fill most of the card take turns: what one freed is the other's to have."""
    token = walk.pool.rest.create_user("another").token
    values: dict[Session, Any] = {}
    wrong = 0
    with closing(Session(walk.pool.info.url, token, default_profile(), "another")) as other:
        for turn, session in product(range(4), (walk.session, other)):
            place = int(session is other)
            with session.capture(f"turn {turn}"):
                value = values.get(session)
                value = torch.full((walk.rows(0.2), 2**14), float(place)).cuda() if value is None else value
                doubled = value * 2
                values[session] = doubled - value + 1
                mean = values[session].mean().item()
            wrong += mean != place + turn + 1
    return Verdict(wrong == 0, f"{wrong} of 8 turns were wrong")


def repeated_cell(walk: Walk) -> Verdict:
    """A cell with a tolerance, until the pool has decided what becomes of its region."""
    with walk.session.capture("make"):
        x, weights = torch.randn(64, 512).cuda(), [torch.randn(512, 512).cuda() / 23 for _ in range(8)]
    found, said = [], ""
    for _ in range(200):
        with walk.session.capture("layers", tolerance=1e-3) as cell:
            made = x
            for weight in weights:
                made = torch.tanh(made @ weight) + made
            found.append(made.sum().item())
        said = cell.report.compiled
        if "largest difference" in said or "op by op: " in said:
            break
        time.sleep(0.5 if "being compiled" in said else 0.0)
    spread = max(found) - min(found)
    return Verdict("largest difference" in said and spread < 1.0, f"{said} | sums within {spread:.2g}")


def recorded_decoding(walk: Walk) -> Verdict:
    """Tokens of a language model with a cache of fixed size, until their step runs as one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    made = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, bos_token_id=0, eos_token_id=0)).eval()
    prompt = torch.arange(16)[None] * 7
    options = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 48, "min_new_tokens": 48}
    options |= {"cache_implementation": "static", "disable_compile": True}
    with walk.session.capture("exact"), torch.no_grad():
        exact = made.generate(prompt.cuda(), **options).tolist()
    wrong, said = 0, ""
    for _ in range(4):
        with walk.session.capture("tokens", tolerance=1e-3) as cell, torch.no_grad():
            wrong += made.generate(prompt.cuda(), **options).tolist() != exact
        said = cell.report.compiled
    return Verdict(
        not wrong and "largest difference" in said, f"{said} | {wrong} of 4 cells have other tokens"
    )


ACTS: tuple[Act, ...] = (
    one_op_cells,
    trains_alike_through_a_death,
    two_sessions,
    two_groups,
    larger_than_the_device,
    index_out_of_range,
)


def gpu_pool(directory: Path, **options: str) -> PoolUnderTest:
    more: dict[str, object] = {"host_bytes": 8 * GIB, "accept_weak_isolation": True} | options
    return PoolUnderTest(directory, devices="cuda", memory_bytes=2 * GIB, **more)


def walked(
    pool: PoolUnderTest, acts: Sequence[Act] = ACTS, device: str = "cuda:0", memory_bytes: int = 2 * GIB
) -> dict[str, Verdict]:
    found = {}
    for act in acts:
        session = connect(name=act.__name__)
        try:
            found[act.__name__] = act(Walk(pool, session, device, memory_bytes))
        except Exception as error:  # noqa: BLE001 - each is reported
            found[act.__name__] = Verdict(False, f"{type(error).__name__}: {str(error)[:600]}")
        finally:
            session.close()
        print(act.__name__, *found[act.__name__], flush=True)
    return found
