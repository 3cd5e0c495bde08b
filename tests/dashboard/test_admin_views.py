"""The page Admin: what forms accept, what questions say, which visitors may do what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from accounts import account

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.admin.accounts import AccountsSection
from djinn_lab.dashboard.admin.jobs import cancel_question, unfinished_jobs
from djinn_lab.dashboard.admin.new_tokens import NewTokens
from djinn_lab.dashboard.admin.page import SECTIONS, AdminPage
from djinn_lab.dashboard.admin.policy import policy_row
from djinn_lab.dashboard.admin.targets import Targets, changes_between
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.permissions import LOG_IN
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.errors import PoolNotFound
from djinn_lab.jobs import RANKS
from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.fairness import Limits
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.queue import QueueView, RunningJob, WaitingJob
from djinn_lab.protocol.rest.status import PoolStatus


def nowhere() -> PoolClient:
    raise PoolNotFound("none")


def known(role: str, user: str = "ann") -> Snapshot:
    accounts = (account("vision/ann", rank=1, limits=Limits(devices_max=3)),)
    return Snapshot(
        connection="live",
        status=PoolStatus("pool", user=user, role=role),
        queue=QueueView(now=10.0, policy="default", accounts=accounts),
    )


MakeBoard = Callable[..., Board]


@pytest.fixture
def board() -> Iterator[MakeBoard]:
    """Make boards of a pool that is not there."""
    hubs: list[Hub] = []

    def make(logged_in: bool = True, keeper: Snapshot | None = None) -> Board:
        hub = Hub(nowhere)
        hubs.append(hub)
        background = Background(hub.executor)
        return Board(hub, Route(), background, LIGHT, True, logged_in, lambda: keeper or Snapshot())

    yield make
    for hub in hubs:
        hub.stop()


@pytest.mark.parametrize(
    ("role", "sections"),
    [
        ("viewer", ["tokens"]),
        ("user", ["tokens"]),
        ("operator", ["tokens", "devices", "jobs", "sessions", "reservations"]),
        ("admin", list(SECTIONS)),
    ],
)
def test_visitor_gets_the_sections_of_the_role(role: str, sections: list[str], board: MakeBoard) -> None:
    page = AdminPage(board())
    page.update(known(role))
    assert [name for name, _ in page.tabs.sections] == sections
    assert ("needs the role" in page.refused.object) == (role != "admin")


def test_visitor_without_the_role_learns_which_user_to_ask(board: MakeBoard) -> None:
    page = AdminPage(board(keeper=known("admin", "root-of-the-lab")))
    page.update(known("viewer"))
    assert "You are ann (viewer); managing the pool needs the role operator." in page.refused.object
    assert "Ask root-of-the-lab, who runs this dashboard" in page.refused.object


def test_address_of_a_section_of_another_role_shows_the_sentence_alone(board: MakeBoard) -> None:
    made = board()
    made.route.update(section="users")
    page = AdminPage(made)
    page.update(known("operator"))
    assert "the section Users needs the role admin" in page.refused.object
    assert list(page.body.objects) == []
    assert made.route.get("section") == "users"


def test_browser_without_a_login_manages_nothing(board: MakeBoard) -> None:
    page = AdminPage(board(logged_in=False))
    page.update(known("admin"))
    assert page.tabs.sections == []
    assert list(page.body.objects) == []
    assert LOG_IN[:40] in page.refused.object


def test_account_form_is_filled_from_the_account_that_is_chosen(board: MakeBoard) -> None:
    section = AccountsSection(board())
    section.update(known("admin"))
    section.accounts.selected = "vision/ann"
    assert section.form.text("account") == "vision/ann"
    assert section.form.text("devices_max") == "3"
    section.form.fields["devices_max"].value = "4"
    section.show_changes()
    assert "devices at most from 3 to 4" in section.changes.question.object
    assert section.changes.asking


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("weight", "heavy", "is not a number"),
        ("weight", "0", "must be above 0"),
        ("weight", "nan", "out of range"),
        ("devices_max", "-1", "out of range"),
        ("queued_max", "2.5", "not a whole number"),
        ("devices_guaranteed", "9", "guarantee of 9 devices is above the limit of 3"),
    ],
)
def test_account_form_refuses_at_the_field_and_keeps_the_text(
    field: str, text: str, words: str, board: MakeBoard
) -> None:
    section = AccountsSection(board())
    section.update(known("admin"))
    section.accounts.selected = "vision/ann"
    section.form.fields[field].value = text
    section.show_changes()
    assert words in section.form.notes[field].object
    assert section.form.fields[field].value == text
    assert not section.changes.asking


def test_account_form_without_a_change_says_so(board: MakeBoard) -> None:
    section = AccountsSection(board())
    section.update(known("admin"))
    section.accounts.selected = "vision/ann"
    section.show_changes()
    assert "Nothing would change" in section.changes.answer.object
    assert not section.changes.asking


def test_account_form_keeps_typed_limits_when_the_account_is_typed_last(board: MakeBoard) -> None:
    section = AccountsSection(board())
    section.update(known("admin"))
    section.form.fields["weight"].value = "2"
    section.form.fields["account"].value = "vision/ann"
    assert section.form.text("weight") == "2"


def test_lifted_limits_are_named() -> None:
    before = Targets(1.0, Limits(devices_max=3, rank_min=RANKS["NORMAL"]))
    assert changes_between(before, Targets(1.0, Limits(queued_max=10))) == [
        "devices at most from 3 to none",
        "pending cells at most from none to 10",
        "best priority from NORMAL to any",
    ]


def test_jobs_that_only_the_queue_knows_are_listed_with_the_newest() -> None:
    jobs = (JobView("1", state="RUNNING", cell="In [1]"), JobView("2", state="DONE"))
    queue = QueueView(
        now=10.0,
        running=(RunningJob("1"), RunningJob("2"), RunningJob("3", user="cy", device="cpu:0")),
        waiting=(WaitingJob("4", user="dee", state="QUEUED", sentence="busy"),),
    )
    found = {job.job: job for job in unfinished_jobs(jobs, queue)}
    assert sorted(found) == ["1", "3", "4"], "the queue is read less often: job 2 is done"
    assert found["1"].cell == "In [1]"
    assert (found["3"].state, found["4"].reason) == ("RUNNING", "busy")


def test_cancel_question_says_what_is_lost() -> None:
    assert "what it has computed is lost" in cancel_question(JobView("1", state="RUNNING"), "")
    assert "It never starts" in cancel_question(JobView("1", state="QUEUED"), "")
    assert "batch notebook fit of ann" in cancel_question(None, "fit of ann")


def test_every_policy_has_a_row_in_words() -> None:
    rows = {name: policy_row(policy, "default") for name, policy in POLICIES.items()}
    assert rows["default"]["now"]
    assert rows["default"]["order"] == "priority, then fair share, then least work"
    assert rows["fifo"]["preempts"] == "nothing"


def test_declined_change_is_not_carried_out() -> None:
    with ThreadPoolExecutor(1) as executor:
        changes = Changes(Background(executor), "test")
        done: list[int] = []
        bar = changes.bar(button("Lose it"))
        changes.ask("Lose it?", "lose it", lambda: done.append(1))
        assert changes.question.visible
        assert not bar.visible
        assert changes.yes.label == "Yes, lose it"
        changes.no.clicks += 1
        assert not changes.question.visible
        assert bar.visible
        assert "Nothing was changed" in changes.answer.object
        changes.confirm()
        assert done == []


def test_second_click_while_a_change_is_under_way_does_nothing() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        changes = Changes(Background(executor), "test")
        done: list[int] = []

        def work() -> None:
            release.wait(10)
            done.append(1)

        for _ in range(2):
            changes.run("Under way.", work, lambda answer: "Done.")
        release.set()
    assert done == [1]
    assert "Done." in changes.answer.object


def test_new_tokens_stay_until_they_are_hidden() -> None:
    tokens = NewTokens()
    tokens.show("The first.", "export DJINN_TOKEN=<1>")
    tokens.show("The second.", "export DJINN_TOKEN=2")
    assert "&lt;1&gt;" in tokens.pane.object
    assert "DJINN_TOKEN=2" in tokens.pane.object
    tokens.hide.clicks += 1
    assert tokens.pane.object == ""
    assert not tokens.view.visible
