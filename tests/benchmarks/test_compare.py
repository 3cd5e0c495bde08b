"""Two result files beside each other: what is worse, and what is noise."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import compare, main
from benchmarks.figures import OURS, Figure, figure, skipped

QUIET = [1.0, 1.01, 0.99, 1.0, 1.02]
MACHINE = {"cpu": "one", "cores": 2, "load_average": 0.5}


def file_of(*figures: Figure) -> dict[str, Any]:
    return {"machine": MACHINE, "figures": [asdict(one) for one in figures]}


def slower(factor: float) -> list[float]:
    return [sample * factor for sample in QUIET]


def test_a_slower_median_outside_the_old_spread_is_a_regression() -> None:
    found = compare(
        file_of(figure("start", "ready", "s", {OURS: QUIET})),
        file_of(figure("start", "ready", "s", {OURS: slower(1.2)})),
    )
    [change] = found.regressions
    assert change.worse_by == pytest.approx(0.2)
    assert str(change).startswith("start: ready: 1 -> 1.2 s, 20% worse")
    assert (found.improvements, found.unchanged) == ([], 0)


def test_overlapping_samples_are_noise() -> None:
    wide = [0.8, 0.9, 1.0, 1.3, 1.5]
    found = compare(
        file_of(figure("start", "ready", "s", {OURS: wide})),
        file_of(figure("start", "ready", "s", {OURS: [sample * 1.15 for sample in wide]})),
    )
    assert (found.regressions, found.improvements, found.unchanged) == ([], [], 1)


def test_a_small_difference_is_noise_however_narrow_the_samples() -> None:
    found = compare(
        file_of(figure("start", "ready", "s", {OURS: QUIET})),
        file_of(figure("start", "ready", "s", {OURS: slower(1.04)})),
    )
    assert (found.regressions, found.unchanged) == ([], 1)


def test_a_figure_with_a_baseline_is_compared_by_its_ratio() -> None:
    """The machine was twice as slow, for both sides."""
    found = compare(
        file_of(figure("long-cell", "training", "s", {OURS: QUIET, "eager": QUIET})),
        file_of(figure("long-cell", "training", "s", {OURS: slower(2), "eager": slower(2)})),
    )
    assert (found.regressions, found.unchanged) == ([], 1)


def test_more_gigabytes_a_second_are_better() -> None:
    found = compare(
        file_of(figure("transfer", "upload", "GB/s", {OURS: QUIET})),
        file_of(figure("transfer", "upload", "GB/s", {OURS: slower(2)})),
    )
    assert [change.worse_by for change in found.improvements] == [pytest.approx(-1.0)]
    assert found.regressions == []


def test_what_one_file_lacks_is_named_and_what_was_skipped_is_left_out() -> None:
    found = compare(
        file_of(
            figure("start", "ready", "s", {OURS: QUIET}), skipped("dashboard", "paint", "s", "no browser")
        ),
        file_of(figure("start", "version", "s", {OURS: QUIET})),
    )
    assert (found.only_old, found.only_new) == (["start: ready"], ["start: version"])


def test_the_command_fails_where_a_figure_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(file_of(figure("start", "ready", "s", {OURS: QUIET}))))
    new.write_text(json.dumps(file_of(figure("start", "ready", "s", {OURS: slower(1.5)}))))
    assert main([str(old), str(old)]) == 0
    assert main([str(old), str(new)]) == 1
    assert "1 worse beyond noise\n  start: ready: 1 -> 1.5 s" in capsys.readouterr().out
