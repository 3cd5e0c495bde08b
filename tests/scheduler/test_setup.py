"""Schedulers from profiles, levels of expertise and answers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djinn_lab.config import load_profile, save_profile
from djinn_lab.config.detection import Cuda, CudaDevice, Facts, RunningPool
from djinn_lab.errors import OptionError, UserError
from djinn_lab.scheduler import (
    FEATURES,
    SCHEDULER_PROFILES,
    DeviceProfile,
    ProgressiveScheduler,
    create_scheduler_from_profile,
    create_smart_scheduler,
    interactive_scheduler_setup,
)

DEVICES = [DeviceProfile.default()]
CUDA = Cuda("found", (CudaDevice("H", 2**36, 2**36), CudaDevice("H", 2**36, 2**36)))
FACTS = Facts(4.0, 2**33, "", CUDA, None, (), RunningPool("absent"))


@pytest.mark.parametrize("name", list(SCHEDULER_PROFILES))
def test_built_in_profiles_make_schedulers(name: str) -> None:
    assert create_scheduler_from_profile(name, devices=DEVICES).profile == SCHEDULER_PROFILES[name]


def test_saved_profiles_make_schedulers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path))
    profile = load_profile("llm_serving").with_text("scheduler.memory_reserve_fraction", "0.4")
    save_profile(msgspec.structs.replace(profile, name="mine"))
    assert create_scheduler_from_profile("mine", devices=DEVICES).profile.reserve_fraction == 0.4
    with pytest.raises(OptionError, match=r"No profile is called 'mime' \(did you mean 'mine'\?\)"):
        create_scheduler_from_profile("mime", devices=DEVICES)


def test_a_mapping_chooses_profile_mode_and_features() -> None:
    made = create_scheduler_from_profile(
        {
            "workload": "llm_serving",
            "reserve_fraction": 0.3,
            "mode": "semantic",
            "features": {"order_for_memory": True, "colocation": False},
        },
        devices=DEVICES,
    )
    assert (made.profile.objective, made.profile.reserve_fraction, made.mode) == ("latency", 0.3, "semantic")
    assert set(made.features) == {"workload", "reserve", "placement", "order_for_memory"}


def test_files_say_the_same_as_a_mapping(tmp_path: Path) -> None:
    toml, as_json = tmp_path / "mine.toml", tmp_path / "mine.json"
    toml.write_text('objective = "memory"\nmode = "advanced"\n[features]\nreserve = false\n')
    as_json.write_text(
        json.dumps({"objective": "memory", "mode": "advanced", "features": {"reserve": False}})
    )
    for path in (toml, as_json, str(toml)):
        made = create_scheduler_from_profile(path, devices=DEVICES)
        assert (made.profile.objective, made.profile.reserve_fraction, made.mode) == ("memory", 0, "advanced")
        assert set(made.features) == set(FEATURES) - {"reserve"}


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ({"objectiv": "memory"}, r"unknown key 'objectiv' \(did you mean 'objective'\?\)"),
        ({"objective": "beauty"}, "beauty"),
        ({"reserve_fraction": 2}, "below 1"),
        ({"reserve_fraction": "much"}, "reserve_fraction"),
        ({"workload": "llm_servin"}, "did you mean 'llm_serving'"),
        ({"mode": "advance"}, "did you mean 'advanced'"),
        ({"mode": 3}, "'3' is no mode"),
        ({"features": {"colocatio": True}}, "did you mean 'colocation'"),
        ({"features": {"colocation": "yes"}}, "Feature colocation of this profile is 'yes'"),
        ({"features": ["colocation"]}, "The features of this profile are"),
        ({1: 2}, "unknown key 1"),
    ],
)
def test_a_faulty_mapping_is_refused_and_says_what_is_wrong(mapping: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        create_scheduler_from_profile(mapping, devices=DEVICES)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.toml", b"objective = ", "cannot be read"),
        ("a.json", b"{", "cannot be read"),
        ("a.json", b"[]", "holds no profile"),
        ("a.toml", b"\xff\xfe", "cannot be read"),
        ("a.toml", b'objectiv = "memory"', "a.toml has an unknown key 'objectiv'"),
        ("b.toml", None, "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=problem) as error:
        create_scheduler_from_profile(path, devices=DEVICES)
    assert str(path) in error.value.message


def test_smart_schedulers_suit_the_level() -> None:
    assert isinstance(
        create_smart_scheduler(expertise_level="beginner", devices=DEVICES), ProgressiveScheduler
    )
    assert create_smart_scheduler(devices=DEVICES).mode == "auto"
    assert create_smart_scheduler(expertise_level="expert", devices=DEVICES).mode == "advanced"
    with pytest.raises(OptionError, match="did you mean 'beginner'"):
        create_smart_scheduler(expertise_level="begginer")  # type: ignore[arg-type]


class Typist:
    """Types the given lines; ``asked``: the questions so far."""

    def __init__(self, *typed: str) -> None:
        self.typed = list(typed)
        self.asked: list[str] = []

    def __call__(self, question: str, default: str) -> str:
        self.asked.append(question)
        return self.typed.pop(0) or default


def test_setup_asks_experts_more_questions() -> None:
    counts = []
    for level in ("beginner", "intermediate", "expert"):
        typist = Typist(*[""] * 5)
        made = interactive_scheduler_setup(level, ask=typist, facts=FACTS)
        assert [one.device for one in made.devices] == ["cuda:0", "cuda:1"]
        counts.append(len(typist.asked))
    assert counts == [1, 3, 5]


def test_setup_recommends_by_the_code() -> None:
    code = "loss.backward()\noptimizer.step()"
    made = interactive_scheduler_setup("intermediate", answers={}, source=code, facts=FACTS)
    assert made.profile.objective == "memory"


def test_setup_uses_what_was_typed_and_asks_again_for_what_is_refused() -> None:
    typist = Typist(
        "llm_servin", "llm_serving", "memory", "2", "0.25", "basic", "reserve, placment", "reserve"
    )
    made = interactive_scheduler_setup("expert", ask=typist, facts=FACTS)
    assert (made.profile.objective, made.profile.reserve_fraction) == ("memory", 0.25)
    assert (made.mode, made.features) == ("basic", ("reserve",))
    assert "did you mean 'llm_serving'" in typist.asked[1]
    assert "did you mean 'placement'" in typist.asked[7]


def test_setup_without_a_terminal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UserError, match="no terminal") as error:
        interactive_scheduler_setup("beginner", facts=FACTS)
    assert "answers={}" in error.value.advice


def test_setup_reads_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("llm_serving\n\n0.3\n"))
    made = interactive_scheduler_setup("intermediate", facts=FACTS)
    assert (made.profile.objective, made.profile.reserve_fraction) == ("latency", 0.3)
    assert "Workload (basic_inference, llm_serving, research_training)" in capsys.readouterr().out


def test_setup_without_questions_takes_answers_and_recommendations() -> None:
    answers = {"workload": "research_training", "features": "none", "mode": "semantic"}
    made = interactive_scheduler_setup("expert", answers=answers, facts=FACTS)
    assert (made.profile.objective, made.mode, made.features) == ("memory", "semantic", ())
    assert isinstance(interactive_scheduler_setup("beginner", answers={}, facts=FACTS), ProgressiveScheduler)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"workloa": "llm_serving"}, "did you mean 'workload'"),
        ({"workload": "beauty"}, "beauty"),
        ({"scheduler.objective": "speed"}, "speed"),
        ({"mode": "fast"}, "'fast' is no mode"),
        ({"features": "reserve,speed"}, "'speed' is no feature"),
        (
            {"features": {"reserve": False}},
            "the answer to 'features' is {'reserve': False}, which",
        ),
        (["advanced"], "are not given by question"),
    ],
)
def test_setup_refuses_faulty_answers(answers: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        interactive_scheduler_setup("expert", answers=answers, facts=FACTS)
    with pytest.raises(OptionError, match="is no question of level beginner"):
        interactive_scheduler_setup("beginner", answers={"mode": "basic"}, facts=FACTS)
