"""Cells and notebooks that depend on checkpoints and data, on real pools."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from device_kind import KIND
from notebook_kit import new_notebook
from pool_kit import Client, act, new_user, rest
from real_pool import PoolUnderTest

import djinn_lab
from djinn_lab.cli import main
from djinn_lab.client.dry_run import DryRun
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError, PoolError, Refused
from djinn_lab.jobs import Terms
from djinn_lab.protocol.rest.notebooks import NotebookView
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

OVER_WITHIN_S = 120.0


def test_a_cell_starts_at_a_checkpoint_of_one_that_runs_on(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as ann, Client(shared_pool) as bob, closing(rest(shared_pool)) as client:
        training = ann.submit(act("sleep 30"))
        ann.until(training, "RUNNING")
        after = bob.submit(act(""), terms=Terms(after=(f"{training[:10]}:checkpoint=two",)))
        assert "checkpoint 'two' of job" in bob.until(after, "SUBMITTED").reason
        client.announce_checkpoint("one", training)
        client.announce_checkpoint("one", training)
        assert "announced 1 so far ('one')" in client.why(after).sentence
        assert client.announce_checkpoint("two", training).jobs == (training,)
        assert bob.result(after).outcome == "done"
        assert client.job(training).checkpoints == ("one", "two")
        assert client.job(training).state == "RUNNING"
        never = bob.submit(act(""), terms=Terms(after=(f"{training}:checkpoint=three",)))
        bob.until(never, "SUBMITTED")
        client.cancel(training)
        result = bob.result(never)
        assert result.outcome == "cancelled"
        assert result.error is not None
        assert "without announcing checkpoint 'three', and announced 2" in result.error.message
        with pytest.raises(OptionError, match="by a running cell"):
            client.announce_checkpoint("four", training)


def test_data_is_waited_for_by_its_project_until_a_limit_or_taken_back(shared_pool: RuntimeInfo) -> None:
    stranger, token = new_user(shared_pool)
    with Client(shared_pool) as ann, Client(shared_pool, token) as eve, closing(rest(shared_pool)) as client:
        waiting = ann.submit(act(""), terms=Terms(after=("data:some features",)))
        ann.until(waiting, "SUBMITTED")
        foreign = eve.submit(act(""), terms=Terms(after=("data:some features",), after_timeout_s=0.5))
        eve.until(foreign, "SUBMITTED")
        client.publish("some features")
        assert ann.result(waiting).outcome == "done"
        assert ann.run(act(""), terms=Terms(after=("data:some features",))).outcome == "done"
        refused = eve.result(foreign)
        assert refused.error is not None
        assert "waited 500.0 ms, its own limit, for data 'some features'" in refused.error.message
        with closing(rest(shared_pool, token)) as other:
            assert other.published() == []
            with pytest.raises(PoolError, match="no data"):
                other.forget_data("some features")
            running = ann.submit(act("sleep 30"))
            ann.until(running, "RUNNING")
            with pytest.raises(Refused, match="another user"):
                other.announce_checkpoint("one", running)
            client.cancel(running)
            ann.result(running)
        assert [one.name for one in client.published()] == ["some features"]
        client.forget_data("some features")
        assert client.published() == []
        with pytest.raises(OptionError, match="no comma"):
            client.publish("a,b")
        assert stranger


def submit(pool: PoolUnderTest, name: str, *cells: str, **asked: Any) -> str:
    return str(pool.rest.submit_notebook(new_notebook(name, *cells, **asked))[0].job)


def test_a_notebook_knows_what_a_cell_announced_before_it_came(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as ann, closing(rest(shared_pool)) as client:
        training = ann.submit(act("sleep 30"))
        ann.until(training, "RUNNING")
        client.announce_checkpoint("one", training)
        asked = new_notebook("late", "1", after=[f"{training}:checkpoint=two"])
        late = client.submit_notebook(asked)[0].job
        assert "announced 1 so far ('one')" in client.notebook(late).reason
        client.cancel(late)
        client.cancel(training)
        ann.result(training)


def until(pool: PoolUnderTest, job: str, state: str) -> NotebookView:
    deadline_s = time.monotonic() + OVER_WITHIN_S
    while (found := pool.rest.notebook(job)).state != state:
        assert time.monotonic() < deadline_s, f"timed out waiting for {state}: {found.reason}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("announcing"), f"{KIND}:1", notebook_slots=2) as running:
        yield running


ANNOUNCES = """
import djinn_lab, time
djinn_lab.checkpoint("one")
djinn_lab.publish(data)
time.sleep(600)
"""
DEPENDS_ON_ITSELF = """
%%local
import djinn_lab, torch
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import Refused
from djinn_lab.jobs import Terms
own = PoolClient.find().notebooks()[-1].job
try:
    with djinn_lab.connect().capture(terms=Terms(after=(own,))):
        never = torch.ones(1) + 1
except Refused as error:
    if "keeps its slot" in str(error):
        djinn_lab.publish("refused")
""".strip()


def test_dependencies_on_checkpoints_and_data_survive_a_killed_server(
    pool: PoolUnderTest,
) -> None:
    announces = submit(pool, "announces", DEPENDS_ON_ITSELF, ANNOUNCES, parameters={"data": "features"})
    at_checkpoint = submit(
        pool, "at checkpoint", "1", after=[f"{announces}:checkpoint=one", "data:features"], after_timeout_s=60
    )
    too_late = submit(pool, "too late", "1", after=[f"{announces}:checkpoint=two"])
    assert "checkpoint 'two' of announces" in pool.rest.why(too_late).sentence
    either = submit(pool, "either", "1", after=[too_late, "data:features", "data:never"], after_count=2)
    given_up = submit(pool, "given up", "1", after=["data:never"], after_timeout_s=0.2)
    assert "data 'never'" in until(pool, given_up, "CANCELLED").reason

    with Client(pool.info) as client:
        cell = client.submit(act(""), terms=Terms(after=(f"{announces}:checkpoint=one",)))
        assert "of notebook announces" in client.until(cell, "SUBMITTED").reason
        assert client.result(cell).outcome == "done"
        late = client.submit(act(""), terms=Terms(after=(announces[:8],)))
        assert "notebook announces" in client.until(late, "SUBMITTED").reason
    until(pool, at_checkpoint, "RUNNING")
    found = pool.rest.notebook(announces)
    assert (found.state, found.checkpoints) == ("RUNNING", ("one",))
    assert "has announced 1 so far ('one')" in pool.rest.why(too_late).sentence
    pool.kill()
    pool.start()
    assert pool.rest.notebook(announces).checkpoints == ("one",)
    assert [one.name for one in pool.rest.published()] == ["features", "refused"]
    reason = until(pool, too_late, "CANCELLED").reason
    assert "without announcing checkpoint 'two', and announced 1 ('one')" in reason
    assert until(pool, announces, "FAILED").checkpoints == ("one",)
    reason = pool.rest.notebook(either).reason
    assert "needs 2 of 3, and 1 came. Not any more: " in reason
    assert too_late in reason
    pool.rest.cancel(either)
    assert pool.rest.notebook(announces).parameters == {"data": "features"}
    with closing(PoolClient(pool.info.url, pool.rest.create_user("eve", "operator").token)) as eve:
        assert eve.notebook(announces).parameters == {}
    with pytest.raises(OptionError, match="not a name for a Python variable"):
        submit(pool, "refused", "1", parameters={"a b": 1})
    with pytest.raises(OptionError, match="without announcing checkpoint 'two'"):
        submit(pool, "refused", "1", after=[f"{announces}:checkpoint=two"])


def test_what_a_captured_cell_announces_has_run(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        with pytest.raises(OptionError, match="neither"):
            djinn_lab.checkpoint("outside")
        with session.capture() as cell:
            kept = torch.ones(3) + 1
            djinn_lab.checkpoint("half")
            done = [job.ops_done for job in pool.rest.jobs() if "half" in job.checkpoints]
            kept = kept * 2
        assert done[0] > 0
        assert kept.cpu().tolist() == [4.0, 4.0, 4.0]
        own = cell.report.job
        with session.capture(terms=Terms(after=(f"{own}:checkpoint=half",))):
            again = torch.ones(1) + 1
        assert again.item() == 2
        late = session.capture(terms=Terms(after=(f"{own}:checkpoint=whole",)))
        with pytest.raises(Refused, match="without announcing checkpoint 'whole', and announced 1"), late:
            again = torch.ones(1) + 1


def test_dry_run_publishes_nothing_and_runs_to_its_end(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        rehearsal = DryRun(session, session.capture())
        with rehearsal:
            kept = torch.ones(3) + 1
            djinn_lab.publish("never made")
            kept = kept * 2
        assert "Cuts: none" in "\n".join(rehearsal.plan)
    assert "never made" not in [one.name for one in pool.rest.published()]


def test_data_in_a_terminal(pool: PoolUnderTest, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands find this pool through the environment."""

    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(("data", *words))
        assert not ended.value.code
        return capsys.readouterr().out

    assert "'labels/v 1' has been published since" in shown("publish", "labels/v 1")
    assert "labels/v 1" in shown()
    assert "was withdrawn" in shown("forget", "labels/v 1")
    assert "labels/v 1" not in shown("list")
