"""The page Admin on a real pool: what its buttons do there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_kind import KIND
from page_kit import board_of, wait_until
from real_pool import PoolUnderTest

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.admin.page import AdminPage
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.devices.page import DevicesPage
from djinn_lab.errors import AuthenticationError

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def pool(directory: Path) -> Iterator[PoolUnderTest]:
    (directory / "run").mkdir()
    with PoolUnderTest(directory / "run", memory_bytes=2**29) as running:
        yield running


@pytest.fixture
def board(pool: PoolUnderTest) -> Iterator[Board]:
    with board_of(PoolClient.find) as made:
        yield made


def section_of(board: Board, name: str) -> Any:
    """A section of the page, brought up to a snapshot that has the queue."""
    board.hub.want_queue()
    page = AdminPage(board)
    board.route.update(section=name)
    page.update(board.hub.poll())
    return page.section(name)


def visible(part: Any, widget: Any) -> bool:
    """Whether a widget is shown in a part of the page, as far as the part decides."""
    if not part.visible:
        return False
    return part is widget or any(visible(one, widget) for one in getattr(part, "objects", ()))


def test_user_is_added_with_a_token_and_removed_after_the_question(board: Board, pool: PoolUnderTest) -> None:
    users = section_of(board, "users")
    users.form.fields["name"].value = "no such name!"
    users.add_user()
    wait_until(lambda: "is not a user name" in users.form.notes["name"].object)
    assert users.form.fields["name"].value == "no such name!"
    users.form.fields["name"].value = "carla"
    users.form.fields["account"].value = "vision/train"
    users.add_user()
    wait_until(lambda: "carla may use the pool as user" in users.adding.answer.object)
    assert users.form.fields["name"].value == ""
    line = users.secret.pane.object
    token = line.partition("DJINN_TOKEN=")[2].partition("<")[0].split()[0]
    with_token = PoolClient(pool.info.url, token)
    assert with_token.status().user == "carla"
    wait_until(lambda: any(row["id"] == "carla" for row in users.users.rows))
    users.users.selected = "carla"
    users.ask_remove()
    assert "All tokens of carla end at once" in users.changing.question.object
    users.changing.no.clicks += 1
    assert with_token.status().user == "carla"
    users.ask_remove()
    users.changing.yes.clicks += 1
    wait_until(lambda: "carla may not use the pool any more" in users.changing.answer.object)
    with pytest.raises(AuthenticationError):
        with_token.status()


def test_role_is_raised_at_once_and_lowered_after_the_question(board: Board, pool: PoolUnderTest) -> None:
    with_token = PoolClient(pool.info.url, pool.rest.create_user("fay").token)
    users = section_of(board, "users")
    wait_until(lambda: any(row["id"] == "fay" for row in users.users.rows))
    users.users.selected = "fay"
    role = users.role_form.fields["role"]
    assert role.value == "user"
    users.ask_role()
    assert "fay has this role" in users.role_form.notes["role"].object
    role.value = "operator"
    users.ask_role()
    wait_until(lambda: "fay has the role operator now" in users.changing.answer.object)
    assert with_token.status().role == "operator"
    wait_until(lambda: {row["id"]: row["role"] for row in users.users.rows}["fay"] == "operator")
    role.value = "viewer"
    users.ask_role()
    assert "run or wait are cancelled" in users.changing.question.object
    assert with_token.status().role == "operator"
    users.changing.confirm()
    wait_until(lambda: "fay has the role viewer now" in users.changing.answer.object)
    assert with_token.status().role == "viewer"
    users.users.selected = board.hub.snapshot().user
    role.value = "user"
    users.ask_role()
    assert "That is your own role" in users.changing.question.object
    users.changing.confirm()
    wait_until(lambda: "stays admin" in users.role_form.notes["role"].object)
    assert role.value == "user"


def test_token_is_made_rotated_and_revoked(board: Board, pool: PoolUnderTest) -> None:
    tokens = section_of(board, "tokens")
    tokens.form.fields["name"].value = "laptop"
    tokens.form.fields["scopes"].value = "read, everything"
    tokens.make_token()
    wait_until(lambda: "is not a scope" in tokens.form.notes["scopes"].object)
    tokens.form.fields["scopes"].value = "read"
    tokens.make_token()
    wait_until(lambda: "The token laptop of" in tokens.making.answer.object)
    assert "DJINN_TOKEN=" in tokens.secret.pane.object
    owner = board.hub.snapshot().user
    wait_until(lambda: any(row["id"] == f"{owner}/laptop" for row in tokens.tokens.rows))
    tokens.tokens.selected = f"{owner}/laptop"
    tokens.ask_rotate()
    wait_until(lambda: "The old secret ends in 24 h" in tokens.changing.answer.object)
    tokens.ask_revoke()
    tokens.changing.yes.clicks += 1
    wait_until(lambda: "is revoked" in tokens.changing.answer.object)
    assert "laptop" not in {token.name for token in pool.rest.tokens()}


def test_limits_are_applied_after_the_page_has_said_what_changes(board: Board, pool: PoolUnderTest) -> None:
    accounts = section_of(board, "accounts")
    accounts.form.fields["account"].value = "optics"
    accounts.form.fields["weight"].value = "2"
    accounts.form.fields["devices_max"].value = "1"
    accounts.show_changes()
    assert "weight from 1 to 2; devices at most from none to 1" in accounts.changes.question.object
    assert not any(one.account == "optics" for one in pool.rest.queue().accounts)
    accounts.changes.confirm()
    wait_until(lambda: "optics has weight 2" in accounts.changes.answer.object)
    [changed] = [one for one in pool.rest.queue().accounts if one.account == "optics"]
    assert (changed.weight, changed.limits.devices_max) == (2.0, 1.0)


def test_reservation_is_made_replaced_and_ended(board: Board, pool: PoolUnderTest) -> None:
    section = section_of(board, "reservations")
    fields = section.form.fields
    fields["name"].value, fields["accounts"].value = "course", "teaching"
    fields["devices"].value, fields["ends"].value = f"{KIND}:7", "+2h"
    section.ask_reserve()
    assert f"no device {KIND}:7" in section.form.notes["devices"].object
    fields["devices"].value, fields["ends"].value = f"{KIND}:0", "tomorrow"
    section.ask_reserve()
    assert "is not a time" in section.form.notes["ends"].object
    fields["ends"].value = "+2h"
    section.ask_reserve()
    wait_until(lambda: f"Reservation course: {KIND}:0 for teaching" in section.making.answer.object)
    [made] = pool.rest.reservations()
    assert made.ends_s > time.time() + 3600
    wait_until(lambda: len(section.reservations.rows) == 1)
    section.reservations.selected = "course"
    section.ask_end()
    section.ending.confirm()
    wait_until(lambda: "course is over" in section.ending.answer.object)
    assert pool.rest.reservations() == []


def test_policy_is_switched_after_the_question(board: Board, pool: PoolUnderTest) -> None:
    policy = section_of(board, "policy")
    wait_until(lambda: len(policy.policies.rows) > 3)
    policy.policies.selected = "fifo"
    policy.ask_switch()
    assert "Decide by fifo in place of default" in policy.changes.question.object
    policy.changes.confirm()
    wait_until(lambda: "decides by the policy fifo" in policy.changes.answer.object)
    assert pool.rest.queue().policy == "fifo"
    pool.rest.set_policy("default")


def test_device_is_drained_described_and_serves_again(board: Board, pool: PoolUnderTest) -> None:
    devices = section_of(board, "devices")
    devices.devices.selected = f"{KIND}:1"
    devices.form.fields["labels"].value = "site"
    devices.describe_device()
    wait_until(lambda: "no label" in devices.form.notes["labels"].object)
    devices.form.fields["labels"].value = "site=lab"
    devices.describe_device()
    wait_until(lambda: f"{KIND}:1 has labels site=lab" in devices.changes.answer.object)
    devices.actions.ask_cordon(drain=True)
    assert devices.actions.changes.yes.label == f"Yes, drain {KIND}:1"
    devices.update(board.hub.poll())
    assert not visible(devices.actions.view, devices.actions.drain), "the question takes its place"
    devices.actions.changes.confirm()
    assert visible(devices.actions.view, devices.actions.drain)
    wait_until(lambda: f"{KIND}:1 is drained" in devices.actions.changes.answer.object)
    devices.update(board.hub.poll())
    assert devices.actions.uncordon.visible
    devices.actions.uncordon_device()
    wait_until(lambda: f"{KIND}:1 serves again" in devices.actions.changes.answer.object)
    assert not any(device.cordoned for device in pool.rest.status().devices)


def test_audit_shows_the_changes_and_filters_them(board: Board, pool: PoolUnderTest) -> None:
    pool.rest.create_user("dora", "viewer")
    audit = section_of(board, "audit")
    wait_until(lambda: any(row["action"] == "POST /v1/users" for row in audit.rows.rows))
    audit.form.fields["since"].value = "yesterday"
    assert "is not a time" in audit.form.notes["since"].object
    audit.form.fields["since"].value = ""
    audit.form.fields["user"].value = "unknown-user"
    wait_until(lambda: audit.rows.rows == [])
    assert audit.rows.empty == "Nothing like that was done"


def test_viewer_sees_a_sentence_and_the_pool_refuses_anyway(pool: PoolUnderTest) -> None:
    token = pool.rest.create_user("eve", "viewer").token
    with board_of(lambda: PoolClient(pool.info.url, token)) as board:
        page = AdminPage(board)
        page.update(board.hub.poll())
        assert "You are eve (viewer)" in page.refused.object
        devices = DevicesPage(board)
        devices.update(board.hub.snapshot())
        assert not devices.actions.view.visible
        devices.actions.cordon_device(f"{KIND}:0", drain=False)
        wait_until(lambda: "needs the role operator" in devices.actions.changes.answer.object)
    assert not any(device.cordoned for device in pool.rest.status().devices)


def test_devices_page_follows_the_address_and_names_a_device_that_is_gone(board: Board) -> None:
    board.route.update(device=f"{KIND}:1")
    page = DevicesPage(board)
    page.enter()
    page.update(board.hub.poll())
    assert page.devices.selected == f"{KIND}:1"
    assert f"Description: {KIND}:1" in page.details.object
    assert page.actions.view.visible
    page.devices.selected = f"{KIND}:9"
    assert f"The pool has no device {KIND}:9" in page._chosen_heading.object
    assert page.details.object == ""
