"""The wizard's state, and pure steps from one state to the next, which every front end shows.

The Panel page, the notebook widget and the terminal all show one :class:`Draft` and call the functions
below, so they recommend, refuse and save alike.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from djinn_lab.config.consequences import Consequences
from djinn_lab.config.detection import Facts
from djinn_lab.config.effects import OwnWork
from djinn_lab.config.fields import FIELD_BY_PATH, FIELDS, Field, Issue
from djinn_lab.config.profiles import (
    BUILT_IN,
    WORKLOADS,
    Profile,
    Workload,
    check_name,
    check_values,
    check_workload,
)
from djinn_lab.config.recommendation import Recommendation, recommend
from djinn_lab.config.rendering import updated
from djinn_lab.config.store import load_file, profiles_path, save_profile
from djinn_lab.config.workload import Guess, detect_workload
from djinn_lab.errors import ProfileError
from djinn_lab.units import format_bytes

_SMALL_SHARED_BYTES = 256 * 2**20
_CHOSEN = "You chose it"


class Difference(msgspec.Struct, frozen=True):
    """A stored setting that would be recommended otherwise today. ``chosen``: whether the user chose it."""

    path: str
    stored: str
    recommended: str
    chosen: bool
    reason: str


class Draft(msgspec.Struct, frozen=True):
    """What was chosen so far. ``issues`` of typed text that was refused are in ``refused`` (path to issue);
    the profile keeps the last accepted value. ``recommendation``: for the number of CPU devices that the
    user chose, where that is chosen. ``for_machine``: what is recommended where the user chooses nothing but
    the workload. ``work``: the user's own graphs, None where none are known. ``stored``: the saved profile
    that it began from, None where it began from the recommendation."""

    facts: Facts
    guess: Guess
    recommendation: Recommendation
    for_machine: Recommendation
    profile: Profile
    refused: dict[str, Issue] = {}
    work: OwnWork | None = None
    stored: Profile | None = None

    @property
    def issues(self) -> list[Issue]:
        """Return everything that is wrong now, errors first."""
        found = [*self.refused.values(), *validate(self.profile, self.facts)]
        return sorted(found, key=lambda issue: issue.severity != "error")

    @property
    def errors(self) -> list[Issue]:
        """Return the issues that keep the draft from being saved."""
        return [issue for issue in self.issues if issue.severity == "error"]

    def reason(self, path: str) -> str:
        """Return why the setting has its value."""
        recommended = self.recommendation.profile.text(path)
        same = recommended == self.profile.text(path)
        if self.profile.origin(path) == "you":
            return _CHOSEN + ("" if same else f"; recommended: {recommended}")
        if not same and self.profile.origin(path) == "default":
            return f"Usual for this workload; recommended now: {recommended}"
        if not same:
            return f"Detected when it was stored; recommended now: {recommended}"
        return self.recommendation.reasons[path]

    def consequence(self, path: str, text: str | None = None) -> str:
        """Return what the setting comes to for the user, with its value or with ``text`` in its place. Raises
        ValueError for text that is not accepted."""
        profile = self.profile if text is None else self.profile.with_text(path, text)
        return Consequences(profile, self.facts, self.work).of(path)

    @property
    def start(self) -> Profile:
        """Return the profile with which the values are compared: the stored one, else the recommended one."""
        return self.for_machine.profile if self.stored is None else self.stored

    @property
    def changed(self) -> list[Field]:
        """Return the settings whose value differs from :attr:`start`."""
        return [field for field in FIELDS if self.profile.value(field.path) != self.start.value(field.path)]

    @property
    def differences(self) -> list[Difference]:
        """Return the stored settings that would be recommended otherwise today; none without a stored
        profile."""
        if self.stored is None:
            return []
        recommended = self.recommendation
        return [
            Difference(
                field.path,
                self.stored.text(field.path),
                recommended.profile.text(field.path),
                self.stored.origin(field.path) == "you",
                recommended.reasons[field.path],
            )
            for field in FIELDS
            if self.stored.value(field.path) != recommended.profile.value(field.path)
        ]


def begin(
    facts: Facts,
    source: str | None = None,
    workload: Workload | None = None,
    work: OwnWork | None = None,
) -> Draft:
    """Start from the machine and, where they are known, a cell's code and the user's own graphs; everything
    is as recommended."""
    guess = detect_workload(source, facts.packages, None if work is None else work.guess)
    if workload is not None:
        guess = Guess(workload, _CHOSEN)
    recommendation = recommend(facts, guess.workload, work=work)
    return Draft(facts, guess, recommendation, recommendation, recommendation.profile, work=work)


def begin_from(
    facts: Facts, profile: Profile, work: OwnWork | None = None, source: str | None = None
) -> Draft:
    """Start from a saved profile, with its values; :attr:`Draft.differences` has what is recommended
    otherwise today. ``source``: code, whose workload is named where it is another one."""
    recognised = detect_workload(source, facts.packages, None if work is None else work.guess)
    evidence = f"Profile {profile.name} is stored with it"
    if recognised.workload != profile.workload and (source or work):
        evidence += f"; {recognised.evidence[:1].lower()}{recognised.evidence[1:]}: {recognised.workload}"
    recommendation = recommend(facts, profile.workload, work=work)
    guess = Guess(profile.workload, evidence)
    draft = Draft(facts, guess, recommendation, recommendation, profile, work=work, stored=profile)
    return _for_chosen_devices(draft)


def _for_chosen_devices(draft: Draft) -> Draft:
    """Return the draft with the recommendation for as many CPU devices as the user chose, where the user
    did; no value changes."""
    chosen = draft.profile.origin("pool.devices") == "you" and draft.facts.cuda.status != "found"
    count = cpu_device_count(draft.profile) if chosen else None
    recommendation = draft.for_machine
    if count is not None:
        recommendation = recommend(draft.facts, draft.profile.workload, count, draft.work)
    return msgspec.structs.replace(draft, recommendation=recommendation)


def begin_again(
    facts: Facts, source: str | None = None, work: OwnWork | None = None, path: Path | None = None
) -> Draft:
    """Start from the profile that the file has as its default, else from the one that has the recommended
    name, else from the recommendation. Raises ProfileError where the file cannot be read."""
    fresh = begin(facts, source, work=work)
    content = load_file(path)
    name = content.default if content.default is not None else fresh.profile.name
    stored = content.profiles.get(name)
    return fresh if stored is None else begin_from(facts, stored, work, source)


def compare_with_file(draft: Draft, path: Path | None = None) -> Draft:
    """Return the draft beside the profile that the file has under its name now, for use after the file has
    changed; none of its values changes. Raises ProfileError where the file cannot be read."""
    stored = load_file(path).profiles.get(draft.profile.name)
    return msgspec.structs.replace(draft, stored=stored)


def look_again(draft: Draft, fresh: Draft) -> Draft:
    """Return ``fresh``, a newly detected draft, with what the user changed in ``draft``: the workload, the
    name, the description, the settings and refused text. Values that were taken as recommended are those
    recommended now."""
    if draft.guess.evidence == _CHOSEN:
        fresh = choose_workload(fresh, draft.profile.workload)
    named = draft.profile.name not in (*BUILT_IN, draft.start.name)
    name = draft.profile.name if named else fresh.profile.name
    profile = _carry_over(fresh.profile, msgspec.structs.replace(draft.profile, name=name))
    for field in draft.changed:
        path = field.path
        profile = profile.with_value(path, draft.profile.value(path), draft.profile.origin(path))
    fresh = _for_chosen_devices(msgspec.structs.replace(fresh, profile=profile, refused=draft.refused))
    for field in FIELDS if fresh.stored is None else draft.changed:
        path = field.path
        same = draft.profile.value(path) == draft.recommendation.profile.value(path)
        if same and draft.profile.origin(path) != "you":
            fresh = _with_recommended(fresh, path)
    return fresh


def choose_workload(draft: Draft, workload: Workload) -> Draft:
    """Change the workload: values that you chose stay, the others are recommended anew."""
    recommended = recommend(draft.facts, workload, work=draft.work)
    name = recommended.profile.name if draft.profile.name in BUILT_IN else draft.profile.name
    kept = _carry_over(recommended.profile, msgspec.structs.replace(draft.profile, name=name))
    guess = draft.guess if draft.guess.workload == workload else Guess(workload, _CHOSEN)
    return _divided_anew(msgspec.structs.replace(draft, guess=guess, for_machine=recommended, profile=kept))


def set_text(draft: Draft, path: str, text: str) -> Draft:
    """Apply typed text to a setting, ``name``, ``description`` or ``workload``; refused text becomes an
    issue."""
    refused = {key: issue for key, issue in draft.refused.items() if key != path}
    draft = msgspec.structs.replace(draft, refused=refused)
    if path == "description":
        return _with_profile(draft, msgspec.structs.replace(draft.profile, description=text.strip()))
    issue = _issue_of_text(draft, path, text)
    if issue is not None:
        return msgspec.structs.replace(draft, refused={**refused, path: issue})
    if path == "name":
        return _with_profile(draft, msgspec.structs.replace(draft.profile, name=text.strip()))
    if path == "workload":
        return choose_workload(draft, WORKLOADS[[str(name) for name in WORKLOADS].index(text)])
    draft = _with_profile(draft, draft.profile.with_text(path, text))
    return _divided_anew(draft) if path == "pool.devices" else draft


def _divided_anew(draft: Draft) -> Draft:
    """Divide anew what the CPU devices share, by their number, where you did not choose it."""
    draft = _for_chosen_devices(draft)
    if draft.facts.cuda.status == "found":
        return draft
    return _with_profile(draft, _carry_over(draft.recommendation.profile, draft.profile))


def use_recommended(draft: Draft, path: str | None = None) -> Draft:
    """Take the recommended value back: of one setting, or of all, which then fit each other."""
    if path is None:
        described = {"name": draft.profile.name, "description": draft.profile.description}
        profile = msgspec.structs.replace(draft.for_machine.profile, **described)
        return msgspec.structs.replace(draft, recommendation=draft.for_machine, profile=profile, refused={})
    refused = {key: issue for key, issue in draft.refused.items() if key != path}
    draft = _with_recommended(msgspec.structs.replace(draft, refused=refused), path)
    return _divided_anew(draft) if path == "pool.devices" else draft


def _with_recommended(draft: Draft, path: str) -> Draft:
    recommended = draft.recommendation.profile
    return _with_profile(
        draft, draft.profile.with_value(path, recommended.value(path), recommended.origin(path))
    )


def refresh(draft: Draft) -> Draft:
    """Take the recommended value of every setting that you did not choose."""
    return _with_profile(draft, _carry_over(draft.recommendation.profile, draft.profile))


def validate(profile: Profile, facts: Facts) -> list[Issue]:
    """Return the issues of the profile, by itself and on this machine."""
    issues = check_values(profile)
    if any(issue.severity == "error" for issue in issues):
        return issues
    return [*_device_issues(profile, facts), *_memory_issues(profile, facts), *_thread_issues(profile, facts)]


def preview(draft: Draft, on_disk: str, *, path: Path | None = None, make_default: bool = False) -> str:
    """Return what saving would change, as a unified diff of the file (empty when nothing). Raises
    ProfileError."""
    path = path or profiles_path()
    reasons = _reasons(draft)
    after = updated(on_disk, path, draft.profile, make_default=make_default, reasons=reasons)
    return file_change(path, on_disk, after, "after saving")


def file_change(path: Path, before: str, after: str, later: str) -> str:
    """Return the unified diff of two texts of a file, empty where they are equal. ``later``: when the second
    one is there."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{path} (now)", f"{path} ({later})", lineterm=""
    )
    return "\n".join(lines)


def _reasons(draft: Draft) -> Mapping[str, str]:
    return {field.path: draft.reason(field.path) for field in FIELDS}


def equivalent_command(profile: Profile, *, make_default: bool = True) -> str:
    """Return the terminal command that saves this very profile without asking."""
    words = ["djinn-lab", "wizard", "--yes", "--profile", profile.name]
    settings = [("workload", str(profile.workload))]
    base = BUILT_IN[profile.workload]
    if profile.description != base.description:
        settings.append(("description", profile.description))
    for field in FIELDS:
        settings.append((field.path, profile.text(field.path)))
    for path, text in settings:
        words += ["--set", f"{path}={text}"]
    return shlex.join([*words, "--default" if make_default else "--no-default"])


def save(draft: Draft, *, path: Path | None = None, make_default: bool = False) -> Path:
    """Write the draft's profile and return the file's path. Raises ProfileError, also for a bad draft."""
    if draft.errors:
        raise ProfileError(f"Not saved: {draft.errors[0].sentence()}")
    return save_profile(draft.profile, make_default=make_default, path=path, reasons=_reasons(draft))


def _with_profile(draft: Draft, profile: Profile) -> Draft:
    return msgspec.structs.replace(draft, profile=profile)


def _carry_over(onto: Profile, old: Profile) -> Profile:
    base = BUILT_IN[old.workload]
    description = onto.description if old.description == base.description else old.description
    profile = msgspec.structs.replace(onto, name=old.name, description=description)
    for path in old.chosen:
        profile = profile.with_value(path, old.value(path), "you")
    return profile


def _issue_of_text(draft: Draft, path: str, text: str) -> Issue | None:
    if path == "name":
        return check_name(text.strip())
    if path == "workload":
        return check_workload(text)
    try:
        draft.profile.with_text(path, text)
    except ValueError as error:
        field = FIELD_BY_PATH[path]
        return Issue(path, "error", str(error), f"Accepted: {field.accepted}")
    return None


def cpu_device_count(profile: Profile) -> int | None:
    """Return how many CPU devices the profile asks for; None when it asks for CUDA or leaves it open."""
    devices = profile.pool.devices
    return int(devices.partition(":")[2]) if devices.startswith("cpu:") else None


def _device_issues(profile: Profile, facts: Facts) -> list[Issue]:
    path = "pool.devices"
    if profile.pool.devices == "cuda" and facts.cuda.status == "absent":
        return [Issue(path, "error", f"cuda was chosen, but {facts.cuda.detail}", "Use cpu:2, or auto")]
    if profile.pool.devices == "cuda" and facts.cuda.status == "unknown":
        return [
            Issue(
                path,
                "warning",
                f"whether CUDA works here is not known: {facts.cuda.detail}",
                "Use auto to be safe",
            )
        ]
    if cpu_device_count(profile) and facts.cuda.status == "found":
        return [Issue(path, "warning", f"{facts.cuda.detail} would stay unused", "Use cuda")]
    return []


def _memory_issues(profile: Profile, facts: Facts) -> list[Issue]:
    count = cpu_device_count(profile)
    each = profile.pool.memory_bytes
    issues = []
    if count and each and facts.memory_bytes is not None:
        wanted, available = count * each, facts.memory_bytes
        sentence = f"{count} x {format_bytes(each)} = {format_bytes(wanted)} of {format_bytes(available)}"
        fits = max(1, int(available * 0.8 / count) // 2**20)
        if wanted > available:
            issues.append(Issue("pool.memory_bytes", "error", sentence, f"Use at most {fits}MiB a device"))
        elif wanted > 0.85 * available:
            issues.append(
                Issue(
                    "pool.memory_bytes",
                    "warning",
                    f"{sentence} leaves little for notebooks",
                    f"Use about {fits}MiB",
                )
            )
    if facts.shared_memory_bytes is not None and facts.shared_memory_bytes < _SMALL_SHARED_BYTES:
        free = format_bytes(facts.shared_memory_bytes)
        issues.append(
            Issue(
                "pool.devices",
                "warning",
                f"/dev/shm has only {free} free, and uploaded tensors pass through it",
                "In a container, start it with a larger --shm-size",
            )
        )
    return issues


def _thread_issues(profile: Profile, facts: Facts) -> list[Issue]:
    count = cpu_device_count(profile)
    threads = profile.pool.threads
    if count and threads and count * threads > facts.whole_cores:
        return [
            Issue(
                "pool.threads",
                "warning",
                f"{count} x {threads} threads on {facts.cores:g} usable cores would slow each other down",
                f"Use {max(1, facts.whole_cores // count)}",
            )
        ]
    return []
