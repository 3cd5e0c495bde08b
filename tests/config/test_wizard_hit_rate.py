"""How often the wizard picks what an experienced operator would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djinn_lab.config.fields import FIELDS
from djinn_lab.config.wizard import begin, validate

HIT_RATE_MIN = 0.9


def misses(environment: dict[str, Any]) -> list[str]:
    draft = begin(environment["facts"], environment.get("source"))
    best, profile = environment["best"], draft.profile
    found = {
        "profile": profile.name,
        "devices": profile.pool.devices,
        "threads": profile.pool.threads,
        "objective": profile.scheduler.objective,
    }
    wrong = [
        f"{key} {found[key]!r}, best {best[key]!r}"
        for key in found
        if key in best and found[key] != best[key]
    ]
    if "each_gib" in best:
        low, high = best["each_gib"]
        each = (profile.pool.memory_bytes or 0) / 2**30
        wrong += [] if low <= each <= high else [f"memory {each:.2f} GiB, best {low} to {high}"]
    return wrong


def test_at_least_nine_of_ten_environments_get_the_best_profile(
    environments: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    report = {environment["title"]: misses(environment) for environment in environments}
    hits = sum(not wrong for wrong in report.values())
    with capsys.disabled():
        print(f"\nwizard: best profile in {hits} of {len(report)} environments ({hits / len(report):.0%})")
    assert len(report) >= 20
    page = (Path(__file__).parents[2] / "docs/profiles.md").read_text()
    assert f"picks that one in {hits} of {len(report)}" in page
    assert hits / len(report) >= HIT_RATE_MIN, {title: wrong for title, wrong in report.items() if wrong}


def test_recommendations_are_valid_and_each_value_has_a_reason(environments: list[dict[str, Any]]) -> None:
    for environment in environments:
        draft = begin(environment["facts"], environment.get("source"))
        errors = [issue for issue in validate(draft.profile, draft.facts) if issue.severity == "error"]
        assert errors == [], environment["title"]
        for field in FIELDS:
            assert len(draft.reason(field.path)) > 10, (environment["title"], field.path)
