"""A decode step that comes while another user's prefill runs, on a live pool of one device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
import torch
from device_kind import KIND
from pool_kit import new_user
from real_pool import PoolUnderTest, wait_for
from torch.nn import functional as F

from djinn_lab.client.session import Session
from djinn_lab.config import default_profile

pytestmark = pytest.mark.processes

LAYERS = 40


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, f"{KIND}:1") as pool:
        yield pool


def attend(rows: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
    """Attend to the rows themselves, or to keys that are there already, layer after layer."""
    for _ in range(LAYERS):
        query = rows[None, None]
        past = query if keys is None else torch.cat([keys[None, None], query], -2)
        rows = rows + F.scaled_dot_product_attention(query, past, past)[0, 0]
    return rows / rows.norm()


def test_step_stops_the_prefill_and_both_have_the_numbers_of_eager_torch(pool: PoolUnderTest) -> None:
    """The decoding user has computed more, so its fair share would let the other one go first."""
    torch.manual_seed(0)
    prompt, token, context = torch.randn(2500, 128), torch.randn(1, 128), torch.randn(64, 128)
    name, token_of_ann = new_user(pool.info)
    sums: dict[str, list[float]] = {"prefill": [], "step": []}

    def run(session: Session, cell: str, rows: torch.Tensor, keys: torch.Tensor | None = None) -> None:
        with torch.no_grad(), session.capture(cell):
            found = attend(rows, keys)
        sums[cell].append(found.sum().item())

    with (
        closing(Session(pool.info.url, pool.info.token, default_profile(), "agent")) as agent,
        closing(Session(pool.info.url, token_of_ann, default_profile(), "ann")) as ann,
    ):
        for _ in range(2):  # so that the pool knows how long they take
            run(agent, "prefill", prompt)
            run(agent, "step", token, context)
        other = Thread(target=run, args=(ann, "prefill", prompt))
        other.start()
        wait_for(lambda: any(job.user == name and job.ops_done for job in pool.rest.jobs(state="RUNNING")))
        run(agent, "step", token, context)
        other.join()
        [job] = [one for one in pool.rest.jobs(limit=50) if one.user == name and one.cell == "prefill"]
        events = [line.event for line in pool.rest.job(job.job).events]
    assert "SegmentPreempted" in events
    off = 0.0 if KIND == "cpu" else 1e-5  # other devices have attention of their own
    assert sums["prefill"] == pytest.approx([attend(prompt).sum().item()] * 3, rel=off, abs=0)
    assert sums["step"] == pytest.approx([attend(token, context).sum().item()] * 3, rel=off, abs=0)
