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
    assert widget.save.disabled
    widget.inputs["pool.devices"].value = "cpu:1"
    assert widget.issues.value == ""
    assert not widget.save.disabled


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


def test_the_text_fallback_says_what_the_widget_holds(machine: Machine) -> None:
    widget = wizard_widget(machine(), "loss.backward()")
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "profile research_training" in data["text/plain"]
    assert "pool.devices = cpu:1  (detected)" in data["text/plain"]
    assert "djinn-lab wizard --yes" in data["text/plain"]
