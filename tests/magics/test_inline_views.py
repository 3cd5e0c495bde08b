"""Graph and schedule as pictures inside a notebook, and the table of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
import torch
from real_pool import PoolUnderTest, wait_for
from torch import nn

import djinn_lab
from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.errors import CellCancelled
from djinn_lab.magics.inline_views import ROWS_MAX, InlineView, graph_view, module_rows, schedule_view
from djinn_lab.magics.jobs_widget import JobTable

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def session(pool: PoolUnderTest) -> Iterator[Session]:
    opened = djinn_lab.connect(name="ann")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cell(session: Session) -> Cell:
    """A training step of a network with more blocks than fit a picture."""
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2 * ROWS_MAX)]
    network = nn.Sequential(nn.Sequential(*blocks), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    with session.capture("In [1]") as captured:
        network(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    return captured


def shown(view: InlineView) -> tuple[str, ElementTree.Element]:
    """Return the text of a view, and its picture, which is well-formed."""
    bundle = view._repr_mimebundle_()
    picture = re.search(r"<svg.*</svg>", bundle["text/html"])
    assert picture is not None
    return bundle["text/plain"], ElementTree.fromstring(picture[0])


def test_graph_shows_its_modules_in_order(cell: Cell) -> None:
    text, picture = shown(graph_view(cell.graph, "in words", "http://here/?page=srg&job=1"))
    assert text == "in words"
    labels = [item.text or "" for item in picture.iter("{http://www.w3.org/2000/svg}text")]
    ordered = ["Sequential.0", "Sequential.1", "backward, outside modules"]
    assert [label for label in labels if label in ordered] == ordered
    assert {"forward", "backward", "optimizer"} <= set(labels)
    rows = module_rows(cell.graph)
    assert len(rows) <= ROWS_MAX
    assert sum(row.ops for row in rows) == len(cell.graph.nodes)
    inside = next(place for place, row in enumerate(rows) if row.module == "Sequential.0")
    after = next(place for place, row in enumerate(rows) if row.module == "Sequential.1")
    assert rows[inside].feeds[after] > 0


def test_schedule_shows_predicted_and_measured_times(cell: Cell) -> None:
    planned = cell.schedule
    text, picture = shown(schedule_view(planned, cell.graph, "why"))
    assert text == "why"
    labels = [item.text for item in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{planned.device.device}, predicted" in labels
    assert "cpu:7, measured" not in labels
    count = len(planned.nodes)
    starts = [float(number) for number in range(count)]
    ran = planned.with_measured(starts, [start + 1 for start in starts], ["cpu:7"] * count)
    _, picture = shown(schedule_view(ran, cell.graph, "why"))
    assert "cpu:7, measured" in [item.text for item in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_table_of_jobs_looks_again_and_stops_a_cell(session: Session, cell: Cell) -> None:
    table = JobTable(session.pool)
    assert "In [1]" in table.table.value
    assert "In [1]" in repr(table)
    assert table.stop.disabled
    assert "In [1]" in repr(JobTable(session.pool, "in [1"))
    assert repr(JobTable(session.pool, "nowhere")).startswith("no job has 'nowhere'")
    with session.capture("In [2]", wait=False) as pending:
        x = torch.eye(400).cuda()
        for _ in range(20_000):
            x = x @ x

    def is_listed() -> bool:
        table.again.click()
        return not table.stop.disabled

    wait_for(is_listed)
    assert "In [2]" in table.active.options[0][0]
    table.stop.click()
    assert "stops after its current op" in table.said.value
    with pytest.raises(CellCancelled):
        pending.handle.get()
    if not table.stop.disabled:  # the table was read before the cell had ended
        table.stop.click()
        assert "already CANCELLED" in table.said.value
    table.again.click()
    assert table.stop.disabled
    assert not table.said.value
