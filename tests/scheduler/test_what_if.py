"""What settings are predicted to do to a user's own cells, and whether the wizard recommends the best."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from what_if_environments import SEEN, SESSIONS, ScriptedEnvironment, device, environments

from djinn_lab.config.effects import PredictedEffect, best_objective, effect_rows, effect_sentence
from djinn_lab.config.profiles import BUILT_IN, SchedulerSettings
from djinn_lab.config.wizard import begin, choose_workload, set_text
from djinn_lab.scheduler.what_if import SettingsComparison
from djinn_lab.srg.graph import SRG

HIT_RATE_MIN = 0.9
AS_GOOD = 1.05
"""Settings that take no more than so many times the best time are as good as the best."""
LATENCY, MEMORY = SchedulerSettings(), SchedulerSettings("memory", 0.1)
GIB = 2**30


@cache
def cells(session: str) -> list[SRG]:
    return next(one.graphs() for one in SESSIONS if one.name == session)


def cost_s(effect: PredictedEffect) -> float:
    return math.inf if effect.refused else effect.seconds


def outcomes(environment: ScriptedEnvironment) -> dict[str, float]:
    """Return the seconds of the whole session under each built-in profile, as the wizard recommends, and as
    it would if it only knew the workload."""
    graphs = cells(environment.session.name)
    whole = SettingsComparison(graphs, environment.devices)
    work = SettingsComparison(graphs[:SEEN], environment.devices) if environment.code is None else None
    draft = begin(environment.facts, environment.code, work=work)
    assert draft.guess.workload == draft.profile.workload
    settings = {str(name): profile.scheduler for name, profile in BUILT_IN.items()}
    settings["wizard"] = draft.profile.scheduler
    settings["workload alone"] = begin(environment.facts, workload=draft.guess.workload).profile.scheduler
    return {name: cost_s(whole.effect(asked)) for name, asked in settings.items()}


def test_wizard_recommends_the_best_settings_in_nine_of_ten_environments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = {environment.title: outcomes(environment) for environment in environments()}
    best = {title: min(found[str(name)] for name in BUILT_IN) for title, found in report.items()}
    hits = {
        name: sum(found[name] <= AS_GOOD * best[title] for title, found in report.items())
        for name in ("wizard", "workload alone", *map(str, BUILT_IN))
    }
    with capsys.disabled():
        print(f"\nwizard: the best settings in so many of {len(report)} environments: {hits}")
    assert len(report) == 96
    page = (Path(__file__).parents[2] / "docs/profiles.md").read_text()
    assert f"in {hits['wizard']} of {len(report)}" in page
    missed = [title for title, found in report.items() if found["wizard"] > AS_GOOD * best[title]]
    assert hits["wizard"] / len(report) >= HIT_RATE_MIN, missed
    assert f"`basic_inference` would do so in {hits['basic_inference']}" in page
    assert hits["wizard"] > hits["workload alone"], "graphs that ran say more than the kind of work"
    for name in BUILT_IN:
        assert hits[name] / len(report) < HIT_RATE_MIN, f"a wizard that always said {name} would pass, too"


def test_effect_is_that_of_the_device_at_which_the_first_graph_begins() -> None:
    fast, large = device("cuda:0", 10, 4e13), device("cuda:1", 24, 1e13)
    work = SettingsComparison(cells("training"), (fast, large))
    quick, roomy = work.effect(LATENCY), work.effect(MEMORY)
    assert (quick.device, roomy.device) == ("cuda:0", "cuda:1")
    assert quick.peak_bytes == roomy.peak_bytes > 10 * GIB
    assert quick.moved_bytes > roomy.moved_bytes + 30 * GIB, "what does not fit is offloaded in each step"
    assert quick.joules is None
    green = SettingsComparison(cells("training"), (replace(fast, watts=700.0), replace(large, watts=40.0)))
    thrifty = green.effect(SchedulerSettings("energy"))
    assert (thrifty.device, thrifty.joules) == ("cuda:1", 40.0 * roomy.seconds)
    alone = SettingsComparison(cells("training"), (large,)).effect(LATENCY)
    assert (alone.seconds, alone.moved_bytes) == (roomy.seconds, roomy.moved_bytes)


def test_effect_says_which_graph_cannot_run() -> None:
    refused = SettingsComparison(cells("training"), (device("cuda:0", 0.01, 1e13),)).effect(LATENCY)
    assert "needs" in refused.refused
    rows = effect_rows(
        SettingsComparison(cells("training"), (device("cuda:0", 0.01, 1e13),)), BUILT_IN["llm_serving"]
    )
    assert [row[4] for row in rows] == ["does not fit"] * 4
    for graphs, devices in (((), (device("cuda:0", 1, 1e13),)), (cells("training"), ())):
        with pytest.raises(ValueError, match="a graph and a device"):
            SettingsComparison(graphs, devices)


def test_another_objective_is_recommended_with_its_numbers_where_it_is_faster() -> None:
    fast, large = device("cuda:0", 24, 4e13), device("cuda:1", 80, 1e13)
    objective, why = best_objective(SettingsComparison(cells("inference"), (fast, large)), MEMORY)
    assert objective == "latency"
    assert "Your last 12 cells would take 2.9 s on cuda:0, against 11.1 s on cuda:1" in why
    same, why = best_objective(SettingsComparison(cells("inference"), (large,)), MEMORY)
    assert same == "memory"
    assert "no other objective is predicted to be over 10% faster" in why


def test_workload_and_objective_follow_from_the_graphs_and_not_from_packages() -> None:
    [environment] = [one for one in environments() if one.title.startswith("a fast") and one.code][:1]
    facts = environment.facts
    assert "lightning" in facts.packages
    assert begin(facts).guess.workload == "research_training"
    for session, workload in (
        ("inference", "basic_inference"),
        ("serving", "llm_serving"),
        ("training", "research_training"),
    ):
        draft = begin(facts, work=SettingsComparison(cells(session), environment.devices))
        assert draft.guess.workload == workload
        assert "our last cells" in draft.guess.evidence
    assert begin(facts, "loss.backward()", work=draft.work).guess.evidence.startswith("Line 1")
    assert "Your last 12 cells" in draft.reason("scheduler.objective")
    again = choose_workload(draft, "llm_serving")
    assert "Your last 12 cells" in again.reason("scheduler.objective")


def test_effects_of_own_and_built_in_settings_are_listed() -> None:
    fast, large = device("cuda:0", 24, 4e13), device("cuda:1", 80, 1e13)
    work = SettingsComparison(cells("inference"), (fast, large))
    [environment] = [one for one in environments() if one.title.startswith("a fast") and one.code][:1]
    draft = set_text(begin(environment.facts, work=work), "scheduler.objective", "memory")
    rows = effect_rows(work, draft.profile)
    assert [row[0] for row in rows] == ["these settings", *BUILT_IN]
    assert rows[0][1:5] == ("memory", "5%", "cuda:1", "11.1 s")
    assert rows[1][1:5] == ("latency", "5%", "cuda:0", "2.9 s")
    assert effect_sentence(work).endswith(
        "in one session on cuda:0 and cuda:1 of the running pool, as measured"
    )
    assert "no running pool knows cells of yours" in effect_sentence(None)
