"""Take the pictures of the dashboard's pages from a real dashboard on a busy pool: ``make pictures``.

It starts a pool of its own with two CPU devices on which several users work, and opens each page in Chromium.
The pictures that the docs show go to ``docs/pictures``; every page as it is empty, busy, dark and narrow goes
to ``build/pictures``, to be looked at."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import djinn_lab
from benchmarks.bench import own_runtime
from benchmarks.dashboard_paint import chromium, dashboard_server, missing_browser
from djinn_lab.client.agents import waiting
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.dashboard.shell import PAGES
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.dashboard_login import with_code

ROOT = Path(__file__).parents[1]
SHOWN, LOOKED_AT = ROOT / "docs" / "pictures", ROOT / "build" / "pictures"
MIB = 2**20
WIDE, NARROW, HIGH = 1360, 420, 900
WARM_UP_S, SETTLING_S = 75.0, 5.0
IN_DOCS = {
    "overview": "overview", "srg": "graph", "schedule": "schedule", "queue": "queue", "memory": "memory",
    "devices": "devices", "costs": "costs",
}  # fmt: skip
OF_A_JOB = ("srg", "schedule")
"""Pages that show one cell: the newest forward pass of the language model."""


@dataclass(frozen=True)
class State:
    """A way to look at a page."""

    name: str
    width: int = WIDE
    query: str = ""


def fine_tune(session: Session) -> None:
    """Train a small convolutional network, a few seconds a cell."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(), torch.nn.Linear(1024, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters())
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    for number in count_up():
        with session.capture(f"In [{number}]"):
            for _ in range(40):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(network(images), labels)
                loss.backward()
                optimizer.step()
            loss.item()


def chat(session: Session) -> None:
    """Ask a small language model again and again, with a pause as a reader makes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6))
    model.train(False)
    for number in count_up():
        with torch.no_grad(), session.capture(f"In [{number}]"):
            model(torch.randint(0, 50257, (1, 64))).logits.argmax().item()
        time.sleep(2)


def sweep(session: Session) -> None:
    """Multiply for minutes in one cell of low priority."""
    for number in count_up():
        with session.capture(f"In [{number}]", priority="LOW"):
            state = torch.eye(700)
            for _ in range(5000):
                state = state @ state
            state.sum().item()


def agent(session: Session) -> None:
    """Think for a moment, then wait for a tool with the state parked."""
    with session.capture("In [1]"):
        state = torch.zeros(40 * MIB // 4)
    for number in count_up(2):
        with session.capture(f"In [{number}]"):
            state += number
            state[0].item()
        with waiting(session, expected_s=8):
            time.sleep(8)


NOTEBOOKS: tuple[tuple[str, str, Callable[[Session], None]], ...] = (
    ("ann", "fine-tune.ipynb", fine_tune),
    ("ben", "chat.ipynb", chat),
    ("ann", "ablation.ipynb", fine_tune),
    ("dan", "sweep.ipynb", sweep),
    *(("eve", f"agent-{number}.ipynb", agent) for number in range(1, 5)),
)


def count_up(first: int = 1) -> Iterator[int]:
    while True:
        yield first
        first += 1


def work(url: str, token: str, name: str, program: Callable[[Session], None]) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with closing(djinn_lab.connect(url, token=token, name=name)) as session:
        program(session)


@contextmanager
def team_at_work(admin: PoolClient, url: str) -> Iterator[None]:
    """Run every notebook in a process of its own."""
    tokens = {user: admin.create_user(user).token for user in sorted({user for user, _, _ in NOTEBOOKS})}
    context = get_context("spawn")
    processes = [
        context.Process(target=work, args=(url, tokens[user], name, program), name=name, daemon=True)
        for user, name, program in NOTEBOOKS
    ]
    for process in processes:
        process.start()
    try:
        time.sleep(WARM_UP_S)
        failed = [process.name for process in processes if not process.is_alive()]
        if failed:
            raise RuntimeError(f"The pictures need every notebook at work; {', '.join(failed)} ended.")
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


class Photographer:
    """Opens pages in one browser. ``url``: of the dashboard."""

    def __init__(self, browser: Any, url: str, admin: PoolClient) -> None:
        self._browser, self._url, self._admin = browser, url, admin

    def take(self, page: str, state: State) -> Path:
        """Save the whole page as it looks in this state."""
        path = LOOKED_AT / f"{page}-{state.name}.png"
        query = "&".join(part for part in (f"page={page}", self._job(page), state.query) if part)
        size = {"width": state.width, "height": HIGH}
        with closing(self._browser.new_context(viewport=size)) as context:
            opened = context.new_page()
            opened.goto(with_code(f"{self._url}?{query}"), wait_until="commit")
            opened.wait_for_timeout(SETTLING_S * 1e3)
            opened.screenshot(path=path, full_page=True)
            if page in IN_DOCS and state == BUSY:
                opened.screenshot(path=SHOWN / f"{IN_DOCS[page]}.png")
        print(path.relative_to(ROOT), flush=True)
        return path

    def _job(self, page: str) -> str:
        if page not in OF_A_JOB:
            return ""
        ended = [job for job in self._admin.jobs() if job.state == "DONE" and job.user == "ben"]
        return f"job={ended[0].job}" if ended else ""


EMPTY, BUSY = State("empty"), State("busy")
BUSY_STATES = (BUSY, State("dark", query="theme=dark"), State("narrow", NARROW))


def main(pages: list[str]) -> None:
    reason = missing_browser()
    if reason is not None:
        sys.exit(f"No pictures can be taken here: {reason}.")
    from playwright.sync_api import sync_playwright

    wanted = pages or list(PAGES)
    LOOKED_AT.mkdir(parents=True, exist_ok=True)
    with own_runtime(), sync_playwright() as playwright:
        pool = start_pool(devices="cpu:2", memory_bytes=128 * MIB, host_bytes=512 * MIB, threads=1)
        try:
            admin = PoolClient(pool.url, pool.token)
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            with closing(browser), dashboard_server() as url:
                photographer = Photographer(browser, url, admin)
                for page in wanted:
                    photographer.take(page, EMPTY)
                with team_at_work(admin, pool.url):
                    for page in wanted:
                        for state in BUSY_STATES:
                            photographer.take(page, state)
        finally:
            stop_pool()


if __name__ == "__main__":
    main(sys.argv[1:])
