"""Profiles in and out of TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_lab.config import default_profile, list_profiles, load_profile, profiles_path, save_profile
from djinn_lab.config.fields import BUILT_IN_ESTIMATOR, FIELDS, NUMBERS, OBJECTIVES, PRIORITIES
from djinn_lab.config.profiles import BUILT_IN, WORKLOADS, Profile
from djinn_lab.config.profiles_text import ProfilesFile, parse
from djinn_lab.config.rendering import render
from djinn_lab.config.store import undo
from djinn_lab.errors import ProfileError
from djinn_lab.scheduler import SCHEDULER_PROFILES


def write(text: str) -> Path:
    path = profiles_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_built_in_profiles_exist_without_a_file() -> None:
    assert [profile.name for profile in list_profiles()] == list(WORKLOADS)
    assert default_profile() == BUILT_IN["basic_inference"]
    assert not profiles_path().exists()


def test_a_saved_profile_comes_back_with_the_origin_of_every_value() -> None:
    profile = (
        load_profile("llm_serving")
        .with_value("pool.devices", "cpu:2", "detected")
        .with_text("pool.memory_bytes", "3GiB")
        .with_text("pool.threads", "auto")
    )
    save_profile(Profile(**{f: getattr(profile, f) for f in profile.__struct_fields__} | {"name": "mine"}))
    back = load_profile("mine")
    assert back.pool.memory_bytes == 3 * 2**30
    assert back.origin("pool.devices") == "detected"
    assert back.origin("pool.memory_bytes") == "you"
    assert back.origin("pool.threads") == "you"
    assert back.origin("session.priority") == "default"
    assert {item.path: item.value for item in back.explain()}["pool.memory_bytes"] == "3GiB"


def test_profile_setting_left_out_has_the_value_of_the_workload() -> None:
    write('[profiles.mine]\nworkload = "research_training"\n[profiles.mine.session]\nquiet = true\n')
    mine = load_profile("mine")
    assert mine.session.quiet
    assert mine.scheduler.objective == "memory"


def test_your_profile_hides_the_built_in_one_of_its_name() -> None:
    save_profile(load_profile("llm_serving").with_text("session.priority", "high"))
    assert load_profile("llm_serving").session.priority == "HIGH"
    assert len(list_profiles()) == len(WORKLOADS)


def test_the_default_is_the_one_the_file_names() -> None:
    save_profile(load_profile("research_training"), make_default=True)
    assert default_profile().name == "research_training"


def test_saving_keeps_the_previous_file_as_backup() -> None:
    path = save_profile(load_profile("llm_serving"))
    before = path.read_text()
    save_profile(load_profile("basic_inference"))
    assert path.with_name("profiles.toml.bak").read_text() == before
    assert sorted(tomllib.loads(path.read_text())["profiles"]) == ["basic_inference", "llm_serving"]
    assert sorted(item.name for item in path.parent.iterdir()) == ["profiles.toml", "profiles.toml.bak"]


def test_undo_restores_the_previous_file_and_a_second_undo_the_change() -> None:
    with pytest.raises(ProfileError, match="nothing to undo"):
        undo()
    path = save_profile(load_profile("llm_serving"))
    first = path.read_text()
    save_profile(load_profile("llm_serving"))
    assert undo().after == "", "a save that changes nothing keeps what is undone"
    assert not tomllib.loads(path.read_text())
    assert undo().after == first == path.read_text()


def test_undo_keeps_the_file_where_the_previous_one_is_damaged() -> None:
    path = save_profile(load_profile("llm_serving"))
    kept = path.read_text()
    path.with_name("profiles.toml.bak").write_text("not toml [")
    with pytest.raises(ProfileError, match=r"profiles\.toml\.bak is not valid TOML"):
        undo()
    assert path.read_text() == kept


def test_a_comment_above_each_setting_says_what_it_does_and_why() -> None:
    reasons = {"session.priority": "Night runs\n\x07wait"}
    path = save_profile(load_profile("llm_serving").with_text("session.priority", "low"), reasons=reasons)
    lines = path.read_text().splitlines()
    above = lines[: lines.index('priority = "LOW"')]
    assert any(line.startswith("# Priority: which of the waiting cells runs first") for line in above)
    assert "# Why: Night runs wait." in above


def test_saving_one_profile_keeps_what_was_written_by_hand_about_the_others() -> None:
    write(
        "# Our team's profiles\n\ndefault = 'mine'\n\n# For the night\n[profiles.mine]\n"
        "workload = 'llm_serving'\n[profiles.mine.session]\n# We are patient\npriority = 'LOW'\n"
        "# Ask Ada\nquiet = true\n\n# Never change this\n[profiles.other]\nworkload = 'llm_serving'  # yes\n"
    )
    save_profile(load_profile("mine").with_text("session.quiet", "false"))
    text = profiles_path().read_text()
    for kept in ("# Our team's profiles", "# We are patient", "# Never change this", "'llm_serving'  # yes"):
        assert kept in text
    assert "# Ask Ada" not in text, "the comment was about another value"
    assert load_profile("mine").session.priority == "LOW"
    assert default_profile().name == "mine"


def test_profiles_that_are_inline_tables_are_saved_too() -> None:
    write("profiles = { mine = { workload = 'llm_serving' }, other = { session = { quiet = true } } }\n")
    save_profile(load_profile("mine").with_text("session.priority", "low"), make_default=True)
    assert default_profile().session.priority == "LOW"
    assert load_profile("other").session.quiet


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not toml [", ["is not valid TOML"]),
        ("defalt = 'x'", ["defalt", "did you mean 'default'"]),
        ("default = 'gone'", ["default", "'gone'", "basic_inference"]),
        ("[profiles.'9lives']", ["profiles.9lives", "a letter, then"]),
        (
            "[profiles.a]\nworkload = 'llm_servin'",
            ["profiles.a.workload", "'llm_servin'", "did you mean 'llm_serving'"],
        ),
        ("[profiles.a.pol]\nx = 1", ["profiles.a.pol", "did you mean 'pool'"]),
        ("[profiles.a.pool]\ndevice = 'cuda'", ["profiles.a.pool.device", "did you mean 'devices'"]),
        ("[profiles.a.pool]\ndevices = 'gpu'", ["profiles.a.pool.devices", "'gpu'", "cpu:N"]),
        ("[profiles.a.pool]\nmemory_bytes = '2 potatoes'", ["memory_bytes", "potatoes", "2GiB"]),
        ("[profiles.a.pool]\nmemory_bytes = 1000", ["memory_bytes", "1000", "64.0 MiB"]),
        ("[profiles.a.pool]\nthreads = 'four'", ["threads", "'four'", "whole number"]),
        ("[profiles.a.pool]\nthreads = true", ["threads", "True", "whole number"]),
        ("[profiles.a.session]\npriority = 'URGENT'", ["priority", "'URGENT'", "CRITICAL"]),
        ("[profiles.a.session]\nprogress_after_s = -1", ["progress_after_s", "-1", "0 to 3600"]),
        (
            "[profiles.a.scheduler]\nmemory_reserve_fraction = nan",
            ["memory_reserve_fraction", "nan", "0 to 0.9"],
        ),
        ("[profiles.a]\npool = 3", ["profiles.a.pool", "3", "table"]),
        ("[profiles.a]\ndetected = ['pool.device']", ["detected", "did you mean 'pool.devices'"]),
    ],
)
def test_a_mistake_names_file_key_what_was_found_and_what_is_accepted(text: str, expected: list[str]) -> None:
    path = write(text)
    with pytest.raises(ProfileError) as caught:
        list_profiles()
    for part in [str(path), *expected]:
        assert part in str(caught.value)


def test_an_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(ProfileError, match="did you mean 'llm_serving'") as caught:
        load_profile("llm-serving")
    assert "research_training" in caught.value.advice


def test_an_invalid_profile_is_not_written() -> None:
    with pytest.raises(ProfileError, match="name"):
        save_profile(Profile(name="two words", workload="llm_serving"))
    assert not profiles_path().exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path / "file"))
    with pytest.raises(ProfileError, match=r"profiles\.toml") as caught:
        save_profile(BUILT_IN["llm_serving"])
    assert caught.value.advice


VALUES = {
    "pool.devices": st.sampled_from(["auto", "cuda", "cpu:1", "cpu:64"]),
    "pool.memory_bytes": st.none() | st.integers(64 * 2**20, 2**50),
    "pool.threads": st.none() | st.integers(1, 1024),
    "pool.host_bytes": st.none() | st.integers(0, 2**50),
    "pool.disk_bytes": st.integers(0, 2**50),
    "pool.link_bytes_per_s": st.integers(0, 2**40),
    "pool.cost_estimator": st.sampled_from([BUILT_IN_ESTIMATOR, "convolution-overhead", "mine_2.0"]),
    "session.priority": st.sampled_from(PRIORITIES),
    "session.progress_after_s": st.floats(0, 3600),
    "session.quiet": st.booleans(),
    "session.numbers": st.sampled_from(NUMBERS),
    "scheduler.objective": st.sampled_from(OBJECTIVES),
    "scheduler.memory_reserve_fraction": st.floats(0, 0.9),
}


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    profile = BUILT_IN[draw(st.sampled_from(WORKLOADS))]
    for field in FIELDS:
        if draw(st.booleans()):
            origin = draw(st.sampled_from(["detected", "you"]))
            profile = profile.with_value(field.path, draw(VALUES[field.path]), origin)
    return profile


@given(profiles())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_profile_survives_the_file(profile: Profile) -> None:
    text = render(ProfilesFile(None, {profile.name: profile}))
    assert parse(text, Path("profiles.toml")).profiles[profile.name] == profile


def test_the_built_in_profiles_plan_like_the_schedulers_own() -> None:
    for name, profile in BUILT_IN.items():
        assert profile.scheduler.objective == SCHEDULER_PROFILES[name].objective
        assert profile.scheduler.memory_reserve_fraction == SCHEDULER_PROFILES[name].reserve_fraction


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    assert [field.path for field in FIELDS if f"| `{field.path}` |" not in page] == []
