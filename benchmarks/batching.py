"""Sessions that decode with one model on one device, one by one, and within a tolerance as batches: rounds of
both in turns, in the same sessions of one pool whose device has one thread."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from statistics import median
from threading import Barrier, Thread
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, figure
from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool

NAME = "batching"
ONE_BY_ONE = "one by one"
SESSIONS, STEPS, ROUNDS = 8, 6, 12
PAST = 64
LAYERS, WIDTH = 4, 1536
TOLERANCE = 1e-4
MEMORY_BYTES = 4 * 2**30


def _model() -> Any:
    """As many weights as GPT-2 small's, in fewer and wider layers, so that the clients, which share this machine,
    record them sooner than the device reads them."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = {"n_layer": LAYERS, "n_embd": WIDTH, "vocab_size": 5000}
    model: Any = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **settings))
    return model.eval()


class Agent:
    """A session that decodes behind keys and values of its own. ``model``: its own, of the same weights in all."""

    def __init__(self, session: Session, model: Any, number: int) -> None:
        self._session, self._model, self._token = session, model, torch.tensor([[number]])
        generator = torch.Generator().manual_seed(number)
        config = model.config
        heads = (1, config.n_head, PAST + number, config.n_embd // config.n_head)
        made = [
            tuple(torch.randn(heads, generator=generator) for _ in range(2)) for _ in range(config.n_layer)
        ]
        with torch.no_grad(), session.capture("past"):
            self._past = [tuple(part * 1.0 for part in parts) for parts in made]

    def step(self, tolerance: float) -> Cell:
        """Decode one token, and wait for its logits."""
        from transformers import DynamicCache

        with torch.no_grad(), self._session.capture("decode", tolerance=tolerance) as cell:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # transformers' own about the argument's name
                logits = self._model(self._token, past_key_values=DynamicCache(self._past)).logits
            float(logits.sum())
        return cell


class Team:
    """All sessions at once, each of which sends its next step as soon as it has the last one's logits."""

    def __init__(self, agents: list[Agent]) -> None:
        self._agents = agents
        self.beside: list[int] = []

    def steps_per_s(self, tolerance: float) -> float:
        together = Barrier(len(self._agents) + 1)

        def run(agent: Agent) -> None:
            together.wait()
            for _ in range(STEPS):
                report = agent.step(tolerance).report
                if tolerance:
                    self.beside.append(report.batched_with)

        threads = [Thread(target=run, args=(agent,)) for agent in self._agents]
        for thread in threads:
            thread.start()
        together.wait()
        began_s = perf_counter()
        for thread in threads:
            thread.join()
        return STEPS * len(self._agents) / (perf_counter() - began_s)


def measure(bench: Bench) -> list[Figure]:
    with _team() as team:
        taken = bench.alternate(
            {
                OURS: lambda: 1000 / team.steps_per_s(TOLERANCE),
                ONE_BY_ONE: lambda: 1000 / team.steps_per_s(0.0),
            },
            ROUNDS,
        )
    medians = {name: 1000 / median(samples) for name, samples in taken.items()}
    facts = {
        "sessions": SESSIONS,
        "mean batch": round(1 + sum(team.beside) / max(1, len(team.beside)), 2),
        "steps per second": {name: round(steps, 1) for name, steps in medians.items()},
    }
    return [figure(NAME, f"a decode step of a GPT-2, {SESSIONS} sessions at once", "ms", taken, **facts)]


@contextmanager
def _team() -> Iterator[Team]:
    with own_runtime(), ExitStack() as stack:
        info = start_pool(devices="cpu:1", threads=1, wait_s=START_TIMEOUT_S, memory_bytes=MEMORY_BYTES)
        stack.callback(stop_pool)
        model, agents = _model(), []
        for number in range(SESSIONS):
            opened = Session(info.url, info.token, default_profile(), f"agent {number}")
            agents.append(Agent(stack.enter_context(closing(opened)), deepcopy(model), number))
        team = Team(agents)
        for tolerance in (0.0, TOLERANCE):  # weights are uploaded, plans and costs known
            team.steps_per_s(tolerance)
        team.beside.clear()
        yield team
