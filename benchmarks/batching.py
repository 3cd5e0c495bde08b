"""Sessions that decode with one model on one device, one by one, and within a tolerance as batches: rounds of
both in turns, by the same processes, of one pool whose device has one thread."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, figure
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool

NAME = "batching"
ONE_BY_ONE = "one by one"
SESSIONS, STEPS, ROUNDS = 8, 8, 12
PAST = 64
LAYERS, WIDTH, WORDS = 4, 1536, 5000
TOLERANCE = 1e-4
MEMORY_BYTES = 4 * 2**30


def _model() -> Any:
    """Return as many weights as GPT-2 small has, in fewer and wider layers, so that the clients, which share
    this machine, record them sooner than the device reads them."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings: dict[str, Any] = {"n_layer": LAYERS, "n_embd": WIDTH, "vocab_size": WORDS}
    model: Any = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **settings))
    return model.eval()


class Agent:
    """A session that decodes behind keys and values of its own."""

    def __init__(self, session: Session, number: int) -> None:
        self._session, self._model, self._token = session, _model(), torch.tensor([[number]])
        generator = torch.Generator().manual_seed(number)
        config = self._model.config
        heads = (1, config.n_head, PAST + number, config.n_embd // config.n_head)
        made = [[torch.randn(heads, generator=generator) for _ in range(2)] for _ in range(LAYERS)]
        with torch.no_grad(), session.capture("past"):
            self._past = [tuple(part * 1.0 for part in parts) for parts in made]

    def step(self, tolerance: float) -> int:
        """Decode one token, wait for the next one's number, and return with how many sessions it was
        batched."""
        from transformers import DynamicCache

        with torch.no_grad(), self._session.capture("decode", tolerance=tolerance) as cell:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # transformers' own about the argument's name
                logits = self._model(self._token, past_key_values=DynamicCache(self._past)).logits
            logits.argmax().item()
        return cell.report.batched_with


def _serve(ours: Connection, url: str, token: str, number: int) -> None:
    """Decode as often, and within such a tolerance, as the benchmark's process says."""
    torch.set_num_threads(1)
    with closing(Session(url, token, default_profile(), f"agent {number}")) as session:
        agent = Agent(session, number)
        ours.send([])
        while (order := ours.recv()) is not None:
            steps, tolerance = order
            ours.send([agent.step(tolerance) for _ in range(steps)])


class Team:
    """All agents at once. ``beside``: with how many sessions each step of a batched round was batched."""

    def __init__(self, agents: list[Connection]) -> None:
        self._agents = agents
        self.beside: list[int] = []

    def step_ms(self, tolerance: float) -> float:
        """Return the milliseconds of the pool for one step of one session."""
        began_s = perf_counter()
        for agent in self._agents:
            agent.send((STEPS, tolerance))
        beside = [found for agent in self._agents for found in agent.recv()]
        took_ms = (perf_counter() - began_s) * 1e3
        self.beside += beside if tolerance else []
        return took_ms / len(beside)


def measure(bench: Bench) -> list[Figure]:
    with _team() as team:
        contenders = {OURS: lambda: team.step_ms(TOLERANCE), ONE_BY_ONE: lambda: team.step_ms(0.0)}
        taken = bench.alternate(contenders, ROUNDS)
    facts: dict[str, Any] = {
        "sessions": SESSIONS,
        "mean_batch": 1 + sum(team.beside) / len(team.beside),
        "steps_per_s": {name: 1000 / median(samples) for name, samples in taken.items()},
    }
    return [figure(NAME, f"a decode step of a GPT-2, {SESSIONS} sessions at once", "ms", taken, **facts)]


@contextmanager
def _team() -> Iterator[Team]:
    with own_runtime(), ExitStack() as stack:
        info = start_pool(devices="cpu:1", threads=1, wait_s=START_TIMEOUT_S, memory_bytes=MEMORY_BYTES)
        stack.callback(stop_pool)
        context, agents = get_context("spawn"), []
        for number in range(SESSIONS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, info.url, info.token, number), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(ours.send, None)
            agents.append(ours)
        for agent in agents:
            agent.recv()
        team = Team(agents)
        for tolerance in (0.0, TOLERANCE):  # until weights are uploaded, and plans and costs known
            team.step_ms(tolerance)
        team.beside.clear()
        yield team
