"""The terminal face."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pexpect
import pytest
from rich.console import Console

from djinn_lab.config import default_profile, load_profile, profiles_path
from djinn_lab.config.detection import Facts
from djinn_lab.config.effects import PredictedEffect
from djinn_lab.config.profiles import SchedulerSettings
from djinn_lab.config.questions import PlainQuestions
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


def answers(console: Console, *typed: str) -> PlainQuestions:
    """Questions whose answers are lines, as of a pipe."""
    lines: Iterator[str] = iter(typed)

    def read_line() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    return PlainQuestions(console, read_line)


def parsed(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[:3] == ["djinn-lab", "wizard", "--yes"]
    pairs = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    return {
        "profile": words[words.index("--profile") + 1],
        "overrides": dict(pair.split("=", 1) for pair in pairs),
    }


def test_yes_saves_the_recommendation_for_every_environment(
    environments: list[dict[str, Any]], console: Console
) -> None:
    for environment in environments:
        expected = begin(environment["facts"], environment.get("source")).profile
        profile = run_terminal_wizard(
            console=console,
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
        options: dict[str, Any] = {"console": console, "dry_run": True, "facts": facts}
        return run_terminal_wizard(**options, **seen).workload

    assert workload() == "research_training"
    assert "None is predicted" in said(console)
    assert workload(source="y = net(x)") == "basic_inference"
    assert workload(work=OneDevice()) == "llm_serving"
    assert "What the scheduler predicts for your last 3 cells in one session on cuda:0" in said(console)
    assert "1.5 s" in said(console)
    assert workload(work=OneDevice(), source="loss.backward()") == "research_training"
    assert workload(work=OneDevice(), source="def broken(:") == "llm_serving"
    assert "The code could not be read (line 1: " in said(console)


class OneDevice:
    """Three cells that generate text, on one device."""

    guess = Guess("llm_serving", "A graph of your last cells has 3 nodes of its decode phase")
    graphs = 3
    devices = ("cuda:0",)
    unmeasured = ()

    def effect(self, settings: SchedulerSettings) -> PredictedEffect:
        return PredictedEffect("cuda:0", 1.5, 2**30, 2**34, 2**20)


def test_all_recommended_values_are_those_of_the_machine(machine: Machine, console: Console) -> None:
    facts = machine()
    typed = ("", "pool", "pool.devices", "cpu:16", "pool.memory_bytes", "900GiB", "back", "recommended")
    questions = answers(console, *typed, "save", "save")
    profile = run_terminal_wizard(console=console, questions=questions, facts=facts)
    assert profile == begin(facts).profile
    assert "default =" not in profiles_path().read_text(), "saved, to be used where it is named"
    assert "Take the recommended value of 4 settings" in said(console), "devices, and what they share"


def test_questions_are_asked_until_the_answer_is_accepted(machine: Machine, console: Console) -> None:
    typed = (
        "llm_servng",
        "2",
        "name",
        "two words",
        "mine",
        "pool",
        "pool.threads",
        "many",
        "2",
        "back",
        "",
        "",
    )
    profile = run_terminal_wizard(console=console, questions=answers(console, *typed), facts=machine())
    assert profile.name == "mine"
    assert profile.workload == "llm_serving"
    assert load_profile("mine").pool.threads == 2
    assert default_profile().name == "mine"
    assert "Saved profile mine, which is used where none is named" in said(console)
    text = said(console)
    assert "'llm_servng' is none of them: type a number from 1 to 3" in text
    assert "found 'two words'" in text
    assert "'many'" in text
    assert "Threads of each device: 4 becomes 2. 4 of 8 cores are busy when every device computes." in text
    assert "djinn-lab wizard --yes --profile mine" in text


def test_saving_leads_to_the_wrong_setting(machine: Machine, console: Console) -> None:
    typed = ("", "pool", "pool.memory_bytes", "1TiB", "back", "save", "1GiB", "save", "leave")
    profile = run_terminal_wizard(console=console, questions=answers(console, *typed), facts=machine())
    assert profile.pool.memory_bytes == 2**30
    assert "Use at most 6553MiB a device" in said(console)
    assert "Nothing was written" in said(console)
    assert not profiles_path().exists()


def test_an_input_that_ends_early_writes_nothing(machine: Machine, console: Console) -> None:
    with pytest.raises(ProfileError, match="--yes"):
        run_terminal_wizard(console=console, questions=answers(console, ""), facts=machine())
    assert not profiles_path().exists()


def test_arrow_keys_and_numbers_choose_in_a_terminal_and_undo_restores() -> None:
    command = [sys.executable, "-m", "djinn_lab.cli"]
    child = pexpect.spawn(command[0], [*command[1:], "wizard"], dimensions=(50, 100), timeout=120)
    child.expect("What kind of work")
    child.expect("3. research_training")
    child.send("1\x1b[B\r")  # the number of the first, then the arrow down
    child.expect("for llm_serving: what next")
    child.expect("Leave without saving")
    child.send("3\r")
    child.expect("Quiet")
    child.send("1\r")
    child.expect("go before none")
    child.send("1\r")
    child.expect("Priority: NORMAL becomes CRITICAL")
    child.expect("Numbers of GPUs")
    child.send("5\r")
    child.expect("Leave without saving")
    child.send("1\r")
    child.expect("Save it")
    child.expect("Leave without saving")
    child.send("\r")
    child.expect("Saved")
    child.expect(pexpect.EOF)
    child.close()
    assert load_profile("llm_serving").session.priority == "CRITICAL"
    output, status = pexpect.run(shlex.join([*command, "wizard", "--undo"]), withexitstatus=True, timeout=120)
    assert (status, b"Restored" in output) == (0, True)
    assert not profiles_path().read_text()


def test_a_number_without_an_option_does_nothing_and_escape_leaves_a_field() -> None:
    command = [sys.executable, "-m", "djinn_lab.cli", "wizard"]
    child = pexpect.spawn(command[0], command[1:], dimensions=(50, 100), timeout=120)
    child.expect("3. research_training")
    child.send("1")
    child.send("9\r")
    child.expect("for basic_inference: what next")
    child.expect("Leave without saving")
    child.send("6\r")
    child.expect("Name:")
    child.send("other")
    child.expect("basic_inferenceother")
    child.send("\x1b")
    child.expect("Profile basic_inference for basic_inference: what next")
    child.expect("Leave without saving")
    child.send("\x03")
    child.expect("Nothing was written")
    child.expect(pexpect.EOF)
    child.close()
    assert not profiles_path().exists()


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
        run_terminal_wizard(console=console, overrides=overrides, facts=machine())
    assert not profiles_path().exists()


def test_a_saved_profile_is_the_starting_point(machine: Machine, console: Console) -> None:
    options: dict[str, Any] = {"console": console, "profile": "mine", "facts": machine()}
    run_terminal_wizard(**options, overrides={"session.priority": "low", "workload": "llm_serving"})
    again = run_terminal_wizard(**options, overrides={"pool.threads": "1"})
    assert again.session.priority == "LOW"
    assert again.workload == "llm_serving"
    assert load_profile("mine") == again
