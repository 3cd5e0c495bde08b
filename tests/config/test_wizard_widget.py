"""The notebook face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from djinn_lab.config import load_profile, profiles_path
from djinn_lab.config.detection import Facts
from djinn_lab.config.wizard import begin
from djinn_lab.magics.wizard_widget import wizard_widget

Machine = Callable[..., Facts]


def test_the_widget_holds_the_recommendation_of_every_environment(environments: list[dict[str, Any]]) -> None:
    for environment in environments:
        expected = begin(environment["facts"], environment.get("source"))
        widget = wizard_widget(environment["facts"], environment.get("source"))
        assert widget.draft == expected, environment["title"]
        for item in expected.profile.explain():
            assert widget.inputs[item.path].value == item.value
            assert item.origin in widget.notes[item.path].value


def test_a_refused_value_is_shown_and_cannot_be_saved(machine: Machine) -> None:
    widget = wizard_widget(machine())
    widget.inputs["pool.devices"].value = "gpu"
    assert "cpu:N" in widget.issues.value
    assert "cpu:N" in widget.notes["pool.devices"].value
    assert widget.inputs["pool.devices"].value == "gpu"
    widget.save.click()
    assert "Not saved" in widget.result.value
    assert not profiles_path().exists()
    widget.inputs["pool.devices"].value = "cpu:1"
    assert widget.issues.value == ""
    assert widget.result.value == ""


def test_saving_writes_the_profile(machine: Machine) -> None:
    widget = wizard_widget(machine())
    widget.workload.value = "llm_serving"
    widget.name.value = "mine"
    widget.inputs["session.priority"].value = "HIGH"
    widget.save.click()
    assert "Saved profile mine" in widget.result.value
    assert load_profile("mine").session.priority == "HIGH"
    assert profiles_path().exists()
    widget.recommended.click()
    assert widget.draft.profile.origin("session.priority") == "default"


def test_all_recommended_values_are_those_of_the_machine(machine: Machine) -> None:
    widget = wizard_widget(machine())
    first = widget.draft.profile.explain()
    for path, text in (("devices", "cpu:16"), ("memory_bytes", "900GiB"), ("threads", "64")):
        widget.inputs[f"pool.{path}"].value = text
    assert "3264MiB" in widget.changes.value, "the value before"
    widget.recommended.click()
    assert [(item.path, widget.inputs[item.path].value) for item in first] == [
        (item.path, item.value) for item in first
    ]
    assert "None: every value" in widget.changes.value


def test_the_wizard_begins_with_the_stored_profile_and_undoes_a_change(machine: Machine) -> None:
    first = wizard_widget(machine())
    assert first.stored.value == ""
    assert first.undo.layout.display == "none"
    first.inputs["session.priority"].value = "HIGH"
    assert "before" in first.changes.value
    first.save.click()
    assert "None: every value" in first.changes.value
    again = wizard_widget(machine())
    assert f"Stored profile {first.draft.profile.name}" in again.stored.value
    assert "HIGH (you chose it)" in again.stored.value
    assert again.refresh.layout.display == "none"  # you chose the only one that differs
    assert again.inputs["session.priority"].value == "HIGH"
    again.inputs["session.priority"].value = "LOW"
    again.save.click()
    assert load_profile(first.draft.profile.name).session.priority == "LOW"
    again.undo.click()
    assert "Restored" in again.result.value
    assert load_profile(first.draft.profile.name).session.priority == "HIGH"
    assert again.inputs["session.priority"].value == "LOW"


def test_a_file_that_cannot_be_read_is_said_and_can_be_undone(machine: Machine) -> None:
    first = wizard_widget(machine())
    first.save.click()
    first.inputs["session.priority"].value = "HIGH"
    first.save.click()
    profiles_path().write_text("[profiles")
    widget = wizard_widget(machine())
    assert str(profiles_path()) in widget.stored.value
    assert widget.save.disabled
    widget.undo.click()
    assert "Restored" in widget.result.value
    assert not widget.save.disabled


def test_the_text_fallback_says_what_the_widget_holds(machine: Machine) -> None:
    widget = wizard_widget(machine(), "loss.backward()")
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "profile research_training" in data["text/plain"]
    assert "pool.devices = cpu:1  (detected)" in data["text/plain"]
    assert "djinn-lab wizard --yes" in data["text/plain"]
