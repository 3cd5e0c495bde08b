"""What cells and notebooks are likely to take, on a real pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from notebook_kit import new_notebook
from real_pool import PoolUnderTest

from djinn_lab.errors import OptionError
from djinn_lab.pool.launch import stop_pool

pytestmark = pytest.mark.processes

MEMORY_BYTES = 2**28
OVER_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    directory = tmp_path_factory.mktemp("forecasts")
    with PoolUnderTest(directory, f"{KIND}:1", memory_bytes=MEMORY_BYTES, notebook_slots=1) as running:
        yield running


def test_a_cell_is_predicted_from_its_graph_and_then_from_its_runs(pool: PoolUnderTest) -> None:
    """The cell has 16 MiB at once: 8 of x and 8 of the sum, of which 8 stay."""
    with pool.session() as session:
        for run in range(7):
            options = " --priority LOW" if run % 2 else ""
            with session.capture("In [1]", code=f"%%djinn{options}\na cell") as cell:
                total = (torch.ones(2**21) + 1).sum()
            assert total.item() == 2**22
            job = pool.rest.job(str(cell.report.job))
            predicted = job.predicted
            assert predicted.runs == min(run, 5)
            assert 0.9 * 2**24 <= predicted.peak_bytes <= 1.2 * 2**24
            assert (predicted.error is not None) == (run >= 6), "five that were predicted from runs"
        assert predicted.error.peak_part < 0.2
        assert predicted.where == "In [1]"


def test_forecasts_survive_a_pool_restart(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, f"{KIND}:1", memory_bytes=MEMORY_BYTES) as pool:
        for run in range(3):
            if run == 2:
                pool.rest.close()
                stop_pool()
                pool.start()
            with pool.session() as session:
                with session.capture("In [1]", code="a cell") as cell:
                    total = (torch.ones(2**21) + 1).sum()
                assert total.item() == 2**22
            predicted = pool.rest.job(str(cell.report.job)).predicted
            assert predicted.runs == run
        assert 0.9 * 2**24 <= predicted.peak_bytes <= 1.2 * 2**24


def test_a_cell_that_begins_with_a_read_teaches_nothing_about_other_reads(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        with session.capture("small"):
            y, z = torch.ones(3) * 2, torch.ones(3) * 3
        with session.capture("heavy"):
            assert y.tolist() == [2.0, 2.0, 2.0]  # a segment without an op, before all others
            heavy = (torch.ones(2**21) + 1).sum()
        assert heavy.item() == 2**22
        with session.capture("read") as cell:
            assert z.tolist() == [3.0, 3.0, 3.0]
        predicted = pool.rest.job(str(cell.report.job)).predicted
    assert predicted.runs == 0
    assert predicted.peak_bytes < 2**20


def test_why_of_a_running_cell_shows_its_forecast(pool: PoolUnderTest) -> None:
    sentences: list[str] = []

    def look() -> None:
        deadline_s = time.monotonic() + OVER_WITHIN_S
        while not sentences and time.monotonic() < deadline_s:
            for job in pool.rest.jobs("RUNNING"):
                sentence = pool.rest.why(job.job).sentence
                if "Predicted from its graph so far" in sentence:
                    sentences.append(sentence)

    with pool.session() as session:
        looking = threading.Thread(target=look)
        looking.start()
        while looking.is_alive():
            with session.capture(code=f"cell at {time.monotonic()}"):
                x = torch.ones(400, 400)
                for _ in range(100):
                    x = (x @ x).clamp(0, 1)
            assert x[0, 0].item() == 1
        looking.join()
    assert "at once" in sentences[0]


def test_a_notebook_that_needed_more_memory_than_there_is_does_not_start_again(pool: PoolUnderTest) -> None:
    cells = (
        "import torch\nx = (torch.ones(8) + 1).sum()\nprint(x)",
        "y = (torch.ones(2**28) + 1).sum()\nprint(y)",
    )
    first = pool.rest.submit_notebook(new_notebook("large", *cells, key="first"))[0].job
    deadline_s = time.monotonic() + OVER_WITHIN_S
    while (found := pool.rest.notebook(first)).state not in ("FAILED", "DONE"):
        assert time.monotonic() < deadline_s, found.reason
        time.sleep(0.05)
    assert found.state == "FAILED"
    assert found.use.peak_bytes > 2**30
    with pytest.raises(OptionError, match=r"lack of memory.*needed 2.0 GiB, and no device .* 256.0 MiB"):
        pool.rest.submit_notebook(new_notebook("again", *cells, key="second"))
    anyway = pool.rest.submit_notebook(new_notebook("large", *cells, key="third", anyway=True))[0]
    assert anyway.predicted.runs == 1
    pool.rest.cancel(anyway.job)
    smaller = pool.rest.submit_notebook(new_notebook("large", *cells[:1], key="fourth"))[0]
    assert smaller.predicted is None
    pool.rest.cancel(smaller.job)
