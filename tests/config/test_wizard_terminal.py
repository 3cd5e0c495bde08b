"""The terminal face."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from djinn_lab.config import load_profile, profiles_path
from djinn_lab.config.detection import Facts
from djinn_lab.config.effects import PredictedEffect
from djinn_lab.config.profiles import SchedulerSettings
from djinn_lab.config.terminal import run_terminal_wizard
from djinn_lab.config.wizard import begin, equivalent_command, set_text
from djinn_lab.config.workload import Guess
from djinn_lab.errors import ProfileError

Machine = Callable[..., Facts]


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def answers(*typed: str) -> Callable[[str, str], str]:
    queue: Iterator[str] = iter(typed)
    return lambda question, default: next(queue) or default


def parsed(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[:3] == ["djinn-lab", "setup", "--yes"]
    pairs = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    return {
        "profile": words[words.index("--profile") + 1],
        "overrides": dict(pair.split("=", 1) for pair in pairs),
        "assume_yes": True,
    }


def test_yes_saves_the_recommendation_for_every_environment(
    environments: list[dict[str, Any]], console: Console
) -> None:
    for environment in environments:
        expected = begin(environment["facts"], environment.get("source")).profile
        profile = run_terminal_wizard(
            console=console,
            assume_yes=True,
            facts=environment["facts"],
            source=environment.get("source"),
            dry_run=True,
        )
        assert profile == expected, environment["title"]
    assert not profiles_path().exists()


def test_the_equivalent_command_gives_the_same_profile(
    environments: list[dict[str, Any]], console: Console
) -> None:
    for environment in environments:
        facts = environment["facts"]
        draft = set_text(begin(facts, environment.get("source")), "name", "mine")
        draft = set_text(draft, "description", "a 'quoted' one")
        options = parsed(equivalent_command(draft.profile))
        profile = run_terminal_wizard(console=console, facts=facts, dry_run=True, **options)
        same = [(item.path, item.value) for item in profile.explain()]
        assert same == [(item.path, item.value) for item in draft.profile.explain()]
        assert (profile.name, profile.workload) == ("mine", draft.profile.workload)
        assert profile.description == "a 'quoted' one"


def test_code_and_own_graphs_win_over_installed_packages(machine: Machine, console: Console) -> None:
    facts = machine(packages=("lightning",))

    def workload(**seen: Any) -> str:
        options: dict[str, Any] = {"console": console, "assume_yes": True, "dry_run": True, "facts": facts}
        return run_terminal_wizard(**options, **seen).workload

    assert workload() == "research_training"
    assert "None is predicted" in said(console)
    assert workload(source="y = net(x)") == "basic_inference"
    assert workload(work=OneDevice()) == "llm_serving"
    assert "What the scheduler predicts for your last 3 cells in one session on cuda:0" in said(console)
    assert "1.5 s" in said(console)
    assert workload(work=OneDevice(), source="loss.backward()") == "research_training"


class OneDevice:
    """Three cells that generate text, on one device."""

    guess = Guess("llm_serving", "A graph of your last cells has 3 nodes of its decode phase")
    graphs = 3
    devices = ("cuda:0",)
    unmeasured = ()

    def effect(self, settings: SchedulerSettings) -> PredictedEffect:
        return PredictedEffect("cuda:0", 1.5, 2**30, 2**34, 2**20)


def test_questions_are_asked_until_the_answer_is_accepted(machine: Machine, console: Console) -> None:
    ask = answers("llm_servng", "llm_serving", "mine", "pool.thread", "pool.threads", "many", "2", "", "yes")
    profile = run_terminal_wizard(console=console, ask=ask, facts=machine())
    assert profile.name == "mine"
    assert profile.workload == "llm_serving"
    assert profile.pool.threads == 2
    assert load_profile("mine").pool.threads == 2
    text = said(console)
    assert "did you mean 'llm_serving'" in text
    assert "did you mean 'pool.threads'" in text
    assert "'many'" in text
    assert "djinn-lab setup --yes --profile mine" in text


def test_errors_must_be_mended_before_saving(machine: Machine, console: Console) -> None:
    ask = answers("", "", "pool.memory_bytes", "1TiB", "", "pool.memory_bytes", "1GiB", "", "no")
    profile = run_terminal_wizard(console=console, ask=ask, facts=machine())
    assert profile.pool.memory_bytes == 2**30
    assert "Errors have to be mended first" in said(console)
    assert "Nothing was written" in said(console)
    assert not profiles_path().exists()


def test_without_a_terminal_it_never_asks(machine: Machine, console: Console) -> None:
    with pytest.raises(ProfileError, match="--yes"):
        run_terminal_wizard(console=console, facts=machine())


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"pool.device": "cuda"}, "did you mean 'pool.devices'"),
        ({"pool.devices": "gpu"}, "Accepted: auto"),
        ({"pool.devices": "cuda"}, "no NVIDIA driver"),
        ({"workload": "x"}, "basic_inference"),
    ],
)
def test_a_bad_override_writes_nothing(
    machine: Machine, console: Console, overrides: dict[str, str], expected: str
) -> None:
    with pytest.raises(ProfileError, match=expected):
        run_terminal_wizard(console=console, assume_yes=True, overrides=overrides, facts=machine())
    assert not profiles_path().exists()


def test_a_saved_profile_is_the_starting_point(machine: Machine, console: Console) -> None:
    options: dict[str, Any] = {"console": console, "assume_yes": True, "profile": "mine", "facts": machine()}
    run_terminal_wizard(**options, overrides={"session.priority": "low", "workload": "llm_serving"})
    again = run_terminal_wizard(**options, overrides={"pool.threads": "1"})
    assert again.session.priority == "LOW"
    assert again.workload == "llm_serving"
    assert load_profile("mine") == again
