"""Drafts, validation, preview and the equivalent command."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from djinn_lab.config import load_profile, profiles_path
from djinn_lab.config.detection import (
    Facts,
    Torch,
    cgroup_free_bytes,
    cpu_quota,
    detect,
    parse_nvidia_smi,
    parse_torch_version,
    usable_cuda,
)
from djinn_lab.config.facts_text import facts_rows
from djinn_lab.config.fields import FIELDS
from djinn_lab.config.profiles import BUILT_IN
from djinn_lab.config.wizard import (
    begin,
    begin_again,
    begin_from,
    choose_workload,
    look_again,
    preview,
    refresh,
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
    assert facts.torch.status == "found"
    assert dict(facts_rows(facts))["Torch"].startswith(facts.torch.version)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n", Torch("found", "2.9.0+cpu", "")),
        ("__version__ = '2.9.0'\ncuda: Optional[str] = '13.0'\n", Torch("found", "2.9.0", "13.0")),
        ("nothing", Torch("unknown")),
    ],
)
def test_the_version_of_torch_is_read_from_its_file(text: str, expected: Torch) -> None:
    assert parse_torch_version(text) == expected


def test_cuda_devices_do_not_count_for_a_torch_that_is_built_for_cpus(machine: Machine) -> None:
    cuda = machine(cuda_gib=(24,)).cuda
    assert usable_cuda(cuda, Torch("found", "2.9.0", "13.0")) == cuda
    assert usable_cuda(cuda, Torch("unknown")) == cuda
    unused = usable_cuda(cuda, Torch("found", "2.9.0+cpu", ""))
    assert unused.status == "absent"
    assert "built for CPUs only" in unused.detail


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
    assert refused.errors
    assert refused.issues[0].path == "pool.devices"
    assert "'gpu'" in refused.issues[0].message
    assert "cpu:N" in refused.issues[0].fix
    with pytest.raises(ProfileError, match="Not saved"):
        save(refused)
    assert not set_text(refused, "pool.devices", "cpu:1").errors
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
    assert (not draft.errors) == (severity == "warning")


def test_a_small_shared_memory_is_warned_about(machine: Machine) -> None:
    facts = machine(shared_gib=0.0625)
    [issue] = validate(begin(facts).profile, facts)
    assert "/dev/shm" in issue.message
    assert "--shm-size" in issue.fix


def test_the_preview_is_a_diff_and_saving_makes_it_empty(machine: Machine) -> None:
    draft = set_text(begin(machine()), "session.priority", "high")
    diff = preview(draft, "")
    assert '+priority = "HIGH"' in diff
    assert '+devices = "cpu:2"' in diff
    path = save(draft)
    assert preview(draft, path.read_text()) == ""
    assert path == profiles_path()


def test_starting_from_a_saved_profile_keeps_what_you_chose(machine: Machine) -> None:
    save(set_text(set_text(begin(machine()), "name", "mine"), "pool.threads", "2"))
    again = begin_from(machine(cores=16), load_profile("mine"))
    assert again.profile.name == "mine"
    assert again.profile.pool.threads == 2
    assert again.profile.origin("pool.devices") == "detected"


def test_running_again_starts_from_what_is_stored_and_says_what_differs(machine: Machine) -> None:
    save(set_text(set_text(begin(machine()), "name", "mine"), "session.priority", "low"), make_default=True)
    smaller = machine(memory_gib=8)
    again = begin_again(smaller)
    assert again.profile == again.stored == load_profile("mine")
    found = {one.path: (one.stored, one.recommended, one.chosen) for one in again.differences}
    assert found["pool.memory_bytes"] == ("3264MiB", "1600MiB", False)
    assert found["session.priority"] == ("LOW", "NORMAL", True)
    assert len(found) == 2
    assert "recommended now: 1600MiB" in again.reason("pool.memory_bytes")
    refreshed = refresh(again)
    assert refreshed.profile.text("pool.memory_bytes") == "1600MiB"
    assert refreshed.profile.session.priority == "LOW"
    assert preview(again, profiles_path().read_text(), make_default=True) == ""


def test_code_of_another_kind_than_the_stored_profile_is_named(machine: Machine) -> None:
    save(begin(machine(), workload="llm_serving"), make_default=True)
    again = begin_again(machine(), "loss.backward()")
    assert again.profile.workload == "llm_serving"
    assert "research_training" in again.guess.evidence


def test_each_setting_says_what_it_comes_to(machine: Machine) -> None:
    draft = begin(machine())
    assert draft.consequence("pool.devices") == "2 cells at once; one more waits until a device is free"
    assert "6.0 GiB of 16.0 GiB" in draft.consequence("pool.memory_bytes", "3GiB")
    assert "2.0 s" in draft.consequence("pool.link_bytes_per_s", "512MiB")
    assert "wait for pending cells of priority CRITICAL," in draft.consequence("session.priority", "HIGH")
    for path in (field.path for field in FIELDS):
        assert draft.consequence(path)
    with pytest.raises(ValueError, match="many"):
        draft.consequence("pool.threads", "many")


def test_all_recommended_values_are_those_of_the_machine_after_other_devices_were_typed(
    machine: Machine,
) -> None:
    fresh = begin(machine())
    draft = set_text(set_text(fresh, "pool.memory_bytes", "900GiB"), "pool.threads", "64")
    draft = set_text(draft, "pool.devices", "cpu:16")
    again = use_recommended(draft)
    assert again == fresh
    assert use_recommended(again) == again
    assert not again.changed
    alone = use_recommended(set_text(fresh, "pool.devices", "cpu:16"), "pool.devices")
    assert alone == fresh, "memory and threads are divided among the recommended devices again"


def test_other_devices_are_compared_with_what_is_recommended_for_the_machine(machine: Machine) -> None:
    fresh = begin(machine())
    draft = set_text(fresh, "pool.devices", "cpu:16")
    assert draft.start == fresh.profile
    assert [field.path for field in draft.changed][:3] == [
        "pool.devices",
        "pool.memory_bytes",
        "pool.threads",
    ]
    save(draft, make_default=True)
    stored = begin_again(machine())
    assert stored.start == load_profile("basic_inference")
    assert stored.recommendation.profile.text("pool.memory_bytes") == "384MiB"
    again = use_recommended(set_text(stored, "pool.memory_bytes", "900GiB"))
    assert again.profile == fresh.profile
    assert again.start == stored.profile


def test_values_that_you_did_not_choose_fit_your_devices_in_another_workload(machine: Machine) -> None:
    draft = choose_workload(set_text(begin(machine()), "pool.devices", "cpu:4"), "llm_serving")
    assert draft.profile.text("pool.memory_bytes") == "2432MiB"
    assert draft.profile.pool.threads == 2
    assert not draft.issues


def test_looking_again_fits_values_that_you_did_not_choose_to_your_devices(machine: Machine) -> None:
    draft = set_text(begin(machine()), "pool.devices", "cpu:2")
    small = machine(memory_gib=3)
    again = look_again(draft, begin(small))
    assert again.for_machine.profile.text("pool.devices") == "cpu:1"
    assert again.profile.text("pool.devices") == "cpu:2"
    assert again.profile.text("pool.memory_bytes") == "576MiB"
    assert again.profile.pool.threads == 4
    assert use_recommended(again).profile == begin(small).profile


def test_a_built_in_profile_is_never_changed(machine: Machine) -> None:
    before = dict(BUILT_IN)
    choose_workload(set_text(begin(machine()), "pool.threads", "3"), "llm_serving")
    assert before == BUILT_IN
