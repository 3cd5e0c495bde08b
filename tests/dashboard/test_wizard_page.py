"""The Wizard page as an object: what it begins with, shows, refuses, saves and restores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from page_kit import board_of

from djinn_lab.client.rest import PoolClient
from djinn_lab.config import load_profile, profiles_path, save_profile
from djinn_lab.config.detection import Cuda, Facts
from djinn_lab.config.wizard import begin
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.wizard.page import WizardPage
from djinn_lab.errors import PoolNotFound


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """A board without a pool, and an empty configuration folder."""
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path / "config"))

    def find() -> PoolClient:
        raise PoolNotFound("no pool is running")

    with board_of(find) as made:
        yield made


@pytest.fixture
def wizard(board: Board) -> WizardPage:
    """The page once it knows the machine, where a profile ``night`` is stored."""
    stored = begin(machine_facts()).profile
    stored = msgspec.structs.replace(stored, name="night").with_text("pool.devices", "cpu:3")
    save_profile(stored.with_value("pool.threads", 7, "detected"), make_default=True)
    page = WizardPage(board)
    page.use_facts((machine_facts(), None))
    return page


def machine_facts() -> Facts:
    """Facts of a machine with eight cores and 16 GiB, without a GPU."""
    return Facts(8, 16 * 2**30, "available", Cuda("absent", detail="no NVIDIA driver"), 2**30)


def test_the_wizard_page_starts_from_the_stored_profile_and_shows_what_is_recommended(
    wizard: WizardPage,
) -> None:
    assert wizard.name.value == "night"
    assert wizard.form.inputs["pool.devices"].value == "cpu:3"
    assert wizard.form.inputs["pool.threads"].value == "7"
    rows = {row["id"]: row for row in wizard.stored.differences.rows}
    assert rows["pool.devices"]["stored"] == "cpu:3 (you chose it)"
    assert rows["pool.threads"]["stored"] == "7"
    wizard.stored.refresh.clicks += 1
    assert wizard.form.inputs["pool.devices"].value == "cpu:3", "a value that the user chose"
    assert wizard.form.inputs["pool.threads"].value == rows["pool.threads"]["recommended"]
    assert "Stored: 7." in wizard.form.notes["pool.threads"].object


def test_the_wizard_page_shows_changes_with_their_effects(wizard: WizardPage) -> None:
    assert not wizard.check.changes.rows
    wizard.form.inputs["session.priority"].value = "LOW"
    wizard.form.inputs["pool.memory_bytes"].value = "1GiB"
    rows = {row["id"]: row for row in wizard.check.changes.rows}
    assert set(rows) == {"session.priority", "pool.memory_bytes"}
    assert rows["session.priority"]["before"] == "NORMAL"
    assert wizard.draft is not None
    for path, row in rows.items():
        assert row["effect"] == wizard.draft.consequence(path)
        assert str(row["effect"]) in wizard.form.notes[path].object


def test_the_wizard_page_takes_the_values_recommended_for_the_machine(wizard: WizardPage) -> None:
    inputs, recommended = wizard.form.inputs, begin(machine_facts()).profile
    for path, text in (("devices", "cpu:16"), ("memory_bytes", "900GiB"), ("threads", "64")):
        inputs[f"pool.{path}"].value = text
    rows = {row["id"]: row["before"] for row in wizard.check.changes.rows}
    stored = load_profile("night")
    assert rows == {path: stored.text(path) for path in rows}
    wizard.skip.clicks += 1
    assert {path: field.value for path, field in inputs.items()} == {
        path: recommended.text(path) for path in inputs
    }
    wizard.save.clicks += 1
    saved = load_profile("night")
    assert [(one.path, one.value) for one in saved.explain()] == [
        (one.path, one.value) for one in recommended.explain()
    ]


def test_the_wizard_page_leads_to_the_first_wrong_field_and_keeps_what_was_typed(
    wizard: WizardPage,
) -> None:
    before = profiles_path().read_text()
    wizard.name.value = "no spaces please"
    wizard.form.inputs["pool.threads"].value = "many"
    wizard.form.inputs["pool.devices"].value = "gpu"
    assert "whole number" in wizard.form.notes["pool.threads"].object
    wizard._go("check")
    wizard.next.clicks += 1
    assert wizard.steps.value == "settings"
    assert wizard.wrong.asked == "pool.devices"
    wizard.next.clicks += 1
    assert wizard.steps.value == "settings"
    wizard._go("save")
    assert wizard.save.label == "Go to the first wrong field"
    wizard.save.clicks += 1
    assert (wizard.steps.value, wizard.wrong.asked) == ("save", "name")
    assert "no spaces please" in wizard.name_note.object
    wizard.wrong.buttons["pool.threads"].clicks += 1
    assert (wizard.steps.value, wizard.wrong.asked) == ("settings", "pool.threads")
    wizard.use_facts((machine_facts(), None))  # looks again
    assert wizard.form.inputs["pool.threads"].value == "many"
    assert wizard.form.inputs["pool.devices"].value == "gpu"
    assert wizard.name.value == "no spaces please"
    assert profiles_path().read_text() == before
    wizard.form.inputs["pool.devices"].value = "cpu:2"
    wizard.form.inputs["pool.threads"].value = "2"
    wizard.next.clicks += 1
    assert wizard.steps.value == "check"
    assert wizard.wrong.paths == ["name"]
    wizard.name.value = "night"
    assert wizard.save.label == "Save"


def test_the_wizard_page_looks_again_and_keeps_changes(wizard: WizardPage) -> None:
    wizard.workload.value = "research_training"
    wizard.name.value = "day"
    wizard.description.value = "Short runs"
    wizard.form.inputs["session.priority"].value = "HIGH"
    wizard.use_facts((machine_facts(), None))
    assert wizard.draft is not None
    profile = wizard.draft.profile
    assert (profile.workload, profile.name, profile.description) == ("research_training", "day", "Short runs")
    assert profile.session.priority == "HIGH"
    assert profile.pool.devices == "cpu:3"


def test_the_wizard_page_undoes_the_last_save_and_keeps_the_values(wizard: WizardPage) -> None:
    before = profiles_path().read_text()
    wizard.form.inputs["pool.devices"].value = "cpu:1"
    wizard.save.clicks += 1
    assert load_profile("night").pool.devices == "cpu:1"
    assert not wizard.check.changes.rows, "the stored profile has them now"
    wizard.undo.clicks += 1
    assert profiles_path().read_text() == before
    assert "Restored" in wizard.result.object
    assert wizard.form.inputs["pool.devices"].value == "cpu:1"
    assert "pool.devices" in [row["id"] for row in wizard.check.changes.rows]
    wizard.undo.clicks += 1
    assert load_profile("night").pool.devices == "cpu:1"


def test_the_wizard_page_restores_a_file_that_cannot_be_read(wizard: WizardPage, board: Board) -> None:
    wizard.form.inputs["session.quiet"].value = "true"
    wizard.save.clicks += 1
    profiles_path().write_text("default = ")
    page = WizardPage(board)
    page.use_facts((machine_facts(), None))
    assert "not valid TOML" in page.stored.problem
    assert page.save.disabled
    page.undo.clicks += 1
    assert page.stored.problem == ""
    assert not page.save.disabled
    assert load_profile("night").pool.devices == "cpu:3"
