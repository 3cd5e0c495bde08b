"""A decode step of one session while another session's prefill runs on the same device: live pools of one
device, with the default policy and in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Thread
from time import perf_counter, sleep

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool

NAME = "decode"
ALONE, ARRIVAL = "no prefill", "order of arrival"
WIDTH, HEADS, LAYERS = 512, 8, 8
PROMPT, CONTEXT = 1024, 64
BOUND_MS = 250.0
"""A prefill is left as long as the step will take before it is preempted, and ends the op that it is in."""


class Decoder(nn.Module):
    """Blocks of causal attention over a cache, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )

    def forward(
        self, rows: torch.Tensor, cache: list[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """``rows``: tokens x width. Returns them, and the keys and values of each layer."""
        kept = []
        for layer, (attend, mix) in enumerate(zip(self.attend, self.mix, strict=True)):
            query, *fresh = attend(rows).view(len(rows), 3, HEADS, -1).permute(1, 2, 0, 3)
            past = torch.stack(fresh)
            if cache is not None:
                past = torch.cat([cache[layer], past], 2)
            kept.append(past)
            found = F.scaled_dot_product_attention(
                query[None], past[0][None], past[1][None], is_causal=cache is None
            )
            rows = rows + found[0].transpose(0, 1).reshape(len(rows), WIDTH)
            rows = rows + mix(rows)
        return rows, kept


class Contest:
    """Two sessions of a pool: one prefills, one decodes."""

    def __init__(self, prefill: Session, decode: Session, rest: PoolClient) -> None:
        torch.manual_seed(0)
        self._sessions, self._rest = (prefill, decode), rest
        self._models = (Decoder(), Decoder())
        self._prompt, self._token = torch.randn(PROMPT, WIDTH), torch.randn(1, WIDTH)
        with torch.no_grad(), decode.capture("context"):
            self._cache = self._models[1](torch.randn(CONTEXT, WIDTH))[1]

    def step(self) -> float:
        """Return the milliseconds of a decode step, with its answer."""
        began_s = perf_counter()
        with torch.no_grad(), self._sessions[1].capture("decode"):
            found = self._models[1](self._token, self._cache)[0].sum()
        found.item()
        return (perf_counter() - began_s) * 1e3

    def step_beside_prefill(self) -> float:
        """Return the same for a step that comes while the other session's prefill runs."""
        other = Thread(target=self._prefill)
        other.start()
        session = self._sessions[0].welcome.session
        while other.is_alive():
            running = self._rest.jobs(state="RUNNING", limit=5)
            if any(job.session == session and job.ops_done for job in running):
                break
            sleep(0.005)
        took_ms = self.step()
        other.join()
        return took_ms

    def _prefill(self) -> None:
        with torch.no_grad(), self._sessions[0].capture("prefill"):
            found = self._models[0](self._prompt)[0].sum()
        found.item()


def measure(bench: Bench) -> list[Figure]:
    with ExitStack() as stack:
        ours, arrival = (stack.enter_context(_contest(policy)) for policy in (None, "fifo"))
        contenders: dict[str, Callable[[], float]] = {
            OURS: ours.step_beside_prefill,
            ARRIVAL: arrival.step_beside_prefill,
            ALONE: ours.step,
        }
        taken = bench.alternate(contenders, 30)
        goal = Goal(BOUND_MS, "p99")
        return [figure(NAME, "a decode step beside another session's prefill", "ms", taken, [goal])]


@contextmanager
def _contest(policy: str | None) -> Iterator[Contest]:
    with own_runtime():
        info = start_pool(devices="cpu:1", threads=1, wait_s=START_TIMEOUT_S, queue_policy=policy)
        try:
            prefill, decode = (
                Session(info.url, info.token, default_profile(), name) for name in ("prefill", "decode")
            )
            with closing(prefill), closing(decode):
                yield Contest(prefill, decode, PoolClient(info.url, info.token))
        finally:
            stop_pool()
