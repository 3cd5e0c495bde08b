"""Drafts, validation, preview and the equivalent command."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from djinn_lab.config import load_profile, profiles_path
from djinn_lab.config.detection import Facts, cgroup_free_bytes, cpu_quota, detect, parse_nvidia_smi
from djinn_lab.config.profiles import BUILT_IN
from djinn_lab.config.wizard import (
    begin,
    begin_from,
    choose_workload,
    preview,
    save,
    set_text,
    use_recommended,
    validate,
)
from djinn_lab.config.workload import detect_workload
from djinn_lab.errors import ProfileError

Machine = Callable[..., Facts]


def test_this_machine_can_be_detected() -> None:
    facts = detect()
    assert facts.cores > 0
    assert facts.memory_bytes is None or facts.memory_bytes > 2**26
    assert facts.cuda.detail
    assert "transformers" in facts.packages
    assert facts.pool.status == "unknown"


@pytest.mark.parametrize(
    ("code", "output", "error", "status"),
    [
        (0, "NVIDIA H200, 143771, 140000\n", "", "found"),
        (0, "A, B, 100, 90\nC, 200, 150\n", "", "found"),
        (0, "\n", "", "absent"),
        (6, "", "No devices were found", "absent"),
        (9, "", "Driver/library version mismatch", "unknown"),
        (0, "NVIDIA H200, [N/A], [N/A]", "", "unknown"),
    ],
)
def test_cuda_status_absent_differs_from_unknown(code: int, output: str, error: str, status: str) -> None:
    cuda = parse_nvidia_smi(code, output, error)
    assert cuda.status == status
    assert cuda.detail


def test_container_limits() -> None:
    assert cpu_quota("150000 100000\n") == 1.5
    assert cpu_quota("max 100000\n") is None
    assert cpu_quota(None) is None
    assert cgroup_free_bytes("1000\n", "300\n") == 700
    assert cgroup_free_bytes("max\n", "300\n") is None
    assert cgroup_free_bytes(None, None) is None


def test_evidence_names_the_line() -> None:
    guess = detect_workload("%%djinn\nx = 1\nloss.backward()")
    assert guess.workload == "research_training"
    assert "Line 3" in guess.evidence
    assert "backward()" in guess.evidence


def test_a_value_you_chose_survives_another_workload(machine: Machine) -> None:
    draft = set_text(begin(machine()), "pool.threads", "3")
    changed = choose_workload(draft, "research_training")
    assert changed.profile.pool.threads == 3
    assert changed.profile.origin("pool.threads") == "you"
    assert changed.profile.scheduler.objective == "memory"
    assert changed.profile.pool.devices == "cpu:1"
    assert changed.profile.name == "research_training"
    assert "recommended: 8" in changed.reason("pool.threads")


def test_your_own_name_survives_another_workload(machine: Machine) -> None:
    draft = set_text(begin(machine()), "name", "mine")
    assert choose_workload(draft, "llm_serving").profile.name == "mine"


def test_refused_text_is_an_issue_and_changes_nothing(machine: Machine) -> None:
    draft = begin(machine())
    refused = set_text(draft, "pool.devices", "gpu")
    assert refused.profile == draft.profile
    assert not refused.can_save
    assert refused.issues[0].path == "pool.devices"
    assert "'gpu'" in refused.issues[0].message
    assert "cpu:N" in refused.issues[0].fix
    with pytest.raises(ProfileError, match="Not saved"):
        save(refused)
    assert set_text(refused, "pool.devices", "cpu:1").can_save
    assert use_recommended(refused, "pool.devices") == draft
    assert use_recommended(set_text(draft, "pool.threads", "1")) == draft


@pytest.mark.parametrize(
    ("machine_options", "path", "text", "severity"),
    [
        ({}, "pool.devices", "cuda", "error"),
        ({"cuda_status": "unknown"}, "pool.devices", "cuda", "warning"),
        ({"cuda_gib": (24,)}, "pool.devices", "cpu:2", "warning"),
        ({}, "pool.memory_bytes", "64GiB", "error"),
        ({}, "pool.memory_bytes", "7GiB", "warning"),
        ({}, "pool.threads", "16", "warning"),
        ({}, "name", "two words", "error"),
    ],
)
def test_validation_compares_with_the_machine(
    machine: Machine, machine_options: dict[str, object], path: str, text: str, severity: str
) -> None:
    draft = set_text(begin(machine(**machine_options)), path, text)
    assert [(issue.path, issue.severity) for issue in draft.issues] == [(path, severity)]
    assert draft.issues[0].fix
    assert draft.can_save == (severity == "warning")


def test_a_small_shared_memory_is_warned_about(machine: Machine) -> None:
    facts = machine(shared_gib=0.0625)
    [issue] = validate(begin(facts).profile, facts)
    assert "/dev/shm" in issue.message
    assert "--shm-size" in issue.fix


def test_the_preview_is_a_diff_and_saving_makes_it_empty(machine: Machine) -> None:
    draft = set_text(begin(machine()), "session.priority", "high")
    diff = preview(draft.profile, "")
    assert '+priority = "HIGH"' in diff
    assert '+devices = "cpu:2"' in diff
    path = save(draft)
    assert preview(draft.profile, path.read_text()) == ""
    assert path == profiles_path()


def test_starting_from_a_saved_profile_keeps_what_you_chose(machine: Machine) -> None:
    save(set_text(set_text(begin(machine()), "name", "mine"), "pool.threads", "2"))
    again = begin_from(machine(cores=16), load_profile("mine"))
    assert again.profile.name == "mine"
    assert again.profile.pool.threads == 2
    assert again.profile.origin("pool.devices") == "detected"


def test_a_built_in_profile_is_never_changed(machine: Machine) -> None:
    before = dict(BUILT_IN)
    choose_workload(set_text(begin(machine()), "pool.threads", "3"), "llm_serving")
    assert before == BUILT_IN
