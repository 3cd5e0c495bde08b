"""``%djinn profile``: shows the notebook's profile and what it changed, and takes another one."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from device_kind import KIND
from notebook_kernel import NotebookKernel

from djinn_lab.config import BUILT_IN, save_profile
from djinn_lab.errors import ProfileError
from djinn_lab.magics.line_commands import run_command
from djinn_lab.magics.notebook import Notebook


@pytest.fixture
def without_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Notebook:
    """A notebook where a call to a pool would fail: none runs, and none can be started."""
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("DJINN_POOL", "http://127.0.0.1:9")
    return Notebook(None, every_cell=False)


def test_profile_without_a_pool_shows_its_settings_and_all_profiles(without_pool: Notebook) -> None:
    night = BUILT_IN["research_training"].with_text("scheduler.memory_reserve_fraction", "0.25")
    save_profile(msgspec.structs.replace(night, name="night"))
    text = str(run_command(without_pool, "profile"))
    assert text.startswith("profile basic_inference (your default)\n  objective latency, reserve 5%: ")
    assert "this session: not begun" in text
    rows = [line.split() for line in text.splitlines() if "%" in line and "NAME" not in line][1:]
    assert rows[0][:5] == ["*", "basic_inference", "(default)", "latency", "5%"]
    assert rows[-1][:4] == ["night", "memory", "25%", "LOW"]


def test_switch_changes_the_defaults_of_cells_and_names_the_former_default(without_pool: Notebook) -> None:
    said = str(run_command(without_pool, "profile research_training"))
    assert "objective memory, reserve 10%, priority LOW" in said
    assert "will begin by it" in said
    options = without_pool.options("", "%%djinn")
    assert (options.terms.objective, options.priority) == ("memory", "LOW")
    assert "(chosen here; your default is basic_inference)" in str(run_command(without_pool, "profile"))
    assert without_pool.options("-p llm_serving", "%%djinn").terms.reserve_fraction == 0.2


def test_switch_to_an_unknown_profile_names_the_nearest_and_changes_nothing(without_pool: Notebook) -> None:
    with pytest.raises(ProfileError, match=r"did you mean 'llm_serving'.*\nThere are: basic_inf"):
        run_command(without_pool, "profile llm_servin")
    with pytest.raises(ProfileError, match="No profile is called '--quiet'"):
        run_command(without_pool, "profile --quiet")
    assert without_pool.options("", "%%djinn").profile == "basic_inference"


@pytest.mark.processes
def test_profile_says_where_the_session_began_and_why(notebook: NotebookKernel) -> None:
    notebook.run("%djinn profile llm_serving")
    notebook.run("%%djinn\nx = torch.ones(3) + 1")
    text = notebook.run("%djinn profile").text
    assert "profile llm_serving (chosen here" in text
    assert re.search(rf"this session: began on {KIND}:\d with In \[3\] \(job ", text)
    assert f"objective and reserve changed nothing. Of the devices that suit it, {KIND}:" in text
    later = notebook.run("%djinn profile research_training").text
    assert f"this session's values stay on {KIND}:" in later
    name = notebook.run("get_ipython().run_line_magic('djinn', 'session').profile.name")
    assert name.values == ["'research_training'"]
    wizard = notebook.run("%djinn wizard").values[0]
    assert "What the scheduler predicts for your last " in wizard
    assert f"research_training, memory, 10%, {KIND}:" in wizard
    assert notebook.complete("%djinn profile res") == ["research_training"]
    assert notebook.complete("%%djinn -p llm") == ["llm_serving"]
