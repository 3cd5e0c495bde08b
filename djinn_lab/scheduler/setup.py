"""Schedulers from what a user has: a profile by name, mapping or file, a level of expertise, answers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, get_args

from djinn_lab.config.detection import Facts, detect
from djinn_lab.config.fields import FIELD_BY_PATH, did_you_mean
from djinn_lab.config.profiles import WORKLOADS
from djinn_lab.config.store import list_profiles
from djinn_lab.config.wizard import Draft, begin, set_text
from djinn_lab.errors import OptionError, UserError
from djinn_lab.scheduler.environment import PoolSession, detect_environment
from djinn_lab.scheduler.features import FEATURES, feature_named
from djinn_lab.scheduler.modes import AdaptiveScheduler, Mode, mode_named
from djinn_lab.scheduler.profiles import SCHEDULER_PROFILES, SchedulerProfile, profile_named
from djinn_lab.scheduler.progressive import ProgressiveScheduler

ExpertiseLevel = Literal["beginner", "intermediate", "expert"]
Answer = TypeVar("Answer")
Ask = Callable[[str, str], str]
"""Question and default answer to what was typed; nothing typed means the default."""
PROFILE_KEYS = ("workload", "objective", "reserve_fraction", "mode", "features")
_WORKLOAD_QUESTION = f"Workload ({', '.join(WORKLOADS)})"
_SETTINGS = ("scheduler.objective", "scheduler.memory_reserve_fraction")
QUESTIONS: MappingProxyType[ExpertiseLevel, tuple[str, ...]] = MappingProxyType(
    {
        "beginner": ("workload",),
        "intermediate": ("workload", *_SETTINGS),
        "expert": ("workload", *_SETTINGS, "mode", "features"),
    }
)
"""What is asked at each level; the rest is as recommended."""
_MODES: MappingProxyType[ExpertiseLevel, Mode] = MappingProxyType(
    {"beginner": "auto", "intermediate": "auto", "expert": "advanced"}
)


def create_smart_scheduler(
    session: PoolSession | None = None, *, expertise_level: ExpertiseLevel = "intermediate", **settings: Any
) -> AdaptiveScheduler:
    """Return a scheduler for the devices of a session's pool, or of this machine: for a ``beginner`` one that
    begins with no features and learns from its runs, for ``intermediate`` one that chooses a mode for each
    graph, for an ``expert`` one with all features. ``settings``: of :class:`AdaptiveScheduler`. Raises
    OptionError for an unknown level."""
    _check_level(expertise_level)
    environment = settings.pop("environment", None) or detect_environment(session, settings.get("devices"))
    if expertise_level == "beginner":
        return ProgressiveScheduler(environment=environment, **settings)
    return AdaptiveScheduler(_MODES[expertise_level], environment=environment, **settings)


def create_scheduler_from_profile(
    profile: str | PathLike[str] | Mapping[str, object], **settings: Any
) -> AdaptiveScheduler:
    """Return the scheduler that a profile describes.

    ``profile``: a name, of :data:`SCHEDULER_PROFILES` or of the profiles that you saved. Or a mapping with
    any of the keys ``workload`` (whose profile supplies what is left out), ``objective``,
    ``reserve_fraction``, ``mode`` and ``features`` (names with True or False). Or the path of a ``.toml`` or
    ``.json`` file with such a mapping. ``settings``: of :class:`AdaptiveScheduler`. Raises OptionError for an
    unknown name or key, and for a file that cannot be read; ProfileError where your saved profiles cannot be.
    """
    if isinstance(profile, Mapping):
        return _of_mapping(profile, "this profile", settings)
    if not isinstance(profile, (str, PathLike)):
        raise OptionError(
            f"profile={profile!r} is no profile.", "Give a name, a mapping, or a .toml or .json file."
        )
    if isinstance(profile, PathLike) or profile.endswith((".toml", ".json")):
        return _of_mapping(_read(Path(profile)), str(profile), settings)
    if profile in SCHEDULER_PROFILES:
        return AdaptiveScheduler(profile=profile, **settings)
    saved = {one.name: one for one in list_profiles()}
    if profile not in saved:
        raise OptionError(
            f"No profile is called {profile!r}{did_you_mean(profile, list(saved))}.",
            f"There are: {', '.join(saved)}.",
        )
    asked = saved[profile].scheduler
    mapping = {
        "workload": saved[profile].workload,
        "objective": asked.objective,
        "reserve_fraction": asked.memory_reserve_fraction,
    }
    return _of_mapping(mapping, profile, settings)


def _read(path: Path) -> Mapping[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:  # UnicodeDecodeError and both parsers' errors are ValueErrors
        raise OptionError(
            f"{path} cannot be read: {error}.", "Give a TOML or JSON file with a profile."
        ) from None
    if not isinstance(found, dict):
        raise OptionError(f"{path} holds no profile.", f"Write a table with {', '.join(PROFILE_KEYS)}.")
    return found


def _of_mapping(mapping: Mapping[str, object], place: str, settings: dict[str, Any]) -> AdaptiveScheduler:
    """Everything is checked before the machine is looked at."""
    unknown = next((key for key in mapping if key not in PROFILE_KEYS), None)
    if unknown is not None:
        raise OptionError(
            f"{place} has an unknown key {unknown!r}{did_you_mean(str(unknown), PROFILE_KEYS)}.",
            f"Use {', '.join(PROFILE_KEYS)}.",
        )
    chosen = {key: mapping[key] for key in ("objective", "reserve_fraction") if key in mapping}
    profile: SchedulerProfile | None = None
    if chosen or "workload" in mapping:
        profile = profile_named(str(mapping.get("workload", "basic_inference")), **chosen)
    switched = _switches(mapping.get("features", {}), place)
    made = AdaptiveScheduler(cast(Mode, str(mapping.get("mode", "auto"))), profile=profile, **settings)
    for name, on in switched.items():
        made.enable_feature(name, on)
    return made


def _switches(found: object, place: str) -> dict[str, bool]:
    if not isinstance(found, Mapping):
        raise OptionError(
            f"The features of {place} are {found!r}.", "Write names of features with true or false."
        )
    for name, on in found.items():
        feature_named(str(name))
        if not isinstance(on, bool):
            raise OptionError(f"Feature {name} of {place} is {on!r}.", "Write true or false.")
    return dict(found)


def interactive_scheduler_setup(
    expertise_level: ExpertiseLevel = "beginner",
    *,
    answers: Mapping[str, str] | None = None,
    ask: Ask | None = None,
    source: str | None = None,
    facts: Facts | None = None,
    session: PoolSession | None = None,
) -> AdaptiveScheduler:
    """Ask the setup wizard's questions about scheduling, and return the scheduler.

    Each question of :data:`QUESTIONS` has the wizard's recommendation as default. ``answers``: by question;
    these questions are not asked. ``ask``: asks the others; with ``answers`` alone their defaults count.
    Without either, the terminal is asked. ``source``: a cell's code, from which the workload is recommended.
    ``facts``: of the machine; None looks. Raises OptionError for an unknown level or question, and for one of
    ``answers`` that is not accepted. A typed answer that is not accepted is asked for again. Raises UserError
    where there is no terminal to ask.
    """
    _check_level(expertise_level)
    if not isinstance(answers, Mapping | None):
        raise OptionError(
            f"answers={answers!r} are not given by question.", "Give a dict, such as {'mode': 'auto'}."
        )
    given, questions = dict(answers or {}), QUESTIONS[expertise_level]
    unknown = next((name for name in given if name not in questions), None)
    if unknown is not None:
        raise OptionError(
            f"{unknown!r} is no question of level {expertise_level}{did_you_mean(unknown, questions)}.",
            f"Use {', '.join(questions)}.",
        )
    known = facts or detect()
    interview = _Interview(given, _terminal if ask is None and answers is None else ask)
    draft = begin(known, source)
    for path in ("workload", *_SETTINGS):
        if path in questions:
            draft = interview.setting(draft, path)
    asked = draft.profile.scheduler
    profile = profile_named(
        draft.profile.workload,
        objective=asked.objective,
        reserve_fraction=asked.memory_reserve_fraction,
    )
    environment = detect_environment(session, facts=known)
    if expertise_level != "expert":
        return create_smart_scheduler(
            expertise_level=expertise_level, environment=environment, profile=profile
        )
    made = AdaptiveScheduler(interview.mode(), environment=environment, profile=profile)
    wanted = interview.features(made.features)
    for name in FEATURES:
        if (name in wanted) != (name in made.features):
            made.enable_feature(name, name in wanted)
    return made


class _Interview:
    """``given``: answers by question. ``ask``: for the others; None takes what is recommended."""

    def __init__(self, given: Mapping[str, str], ask: Ask | None) -> None:
        self._given, self._ask = given, ask

    def setting(self, draft: Draft, path: str) -> Draft:
        """Ask for a setting of the wizard."""

        def accept(text: str) -> Draft:
            changed = set_text(draft, path, text)
            issue = changed.refused.get(path)
            if issue is not None:
                raise OptionError(f"{issue.path}: {issue.message}.", f"{issue.fix}.")
            return changed

        field = FIELD_BY_PATH.get(path)
        question = f"{field.label}: {field.help} ({field.accepted})" if field else _WORKLOAD_QUESTION
        default = draft.profile.text(path) if field else str(draft.profile.workload)
        return self._answer(path, question, default, accept)

    def mode(self) -> Mode:
        question = f"Mode ({', '.join(get_args(Mode))})"
        return self._answer("mode", question, _MODES["expert"], mode_named)

    def features(self, recommended: Sequence[str]) -> tuple[str, ...]:
        def accept(text: str) -> tuple[str, ...]:
            names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
            return tuple(feature_named(name).name for name in names)

        question = f"Features, with commas between them, or none ({', '.join(FEATURES)})"
        return self._answer("features", question, ", ".join(recommended) or "none", accept)

    def _answer(self, name: str, question: str, default: str, accept: Callable[[str], Answer]) -> Answer:
        if name in self._given or self._ask is None:
            return accept(_text(name, self._given.get(name, default)))
        shown = question
        while True:
            try:
                return accept(self._ask(shown, default))
            except OptionError as error:
                shown = f"{error.message} {question}"


def _text(name: str, answer: object) -> str:
    if isinstance(answer, str):
        return answer
    raise OptionError(
        f"the answer to {name!r} is {answer!r}, which is no text.", "Give it as it would be typed."
    )


def _terminal(question: str, default: str) -> str:
    try:
        return input(f"{question} [{default}]: ").strip() or default
    except EOFError:
        raise UserError(
            "the setup asks questions, and there is no terminal.",
            "Give answers={} for what is recommended, or your own answers by question.",
        ) from None


def _check_level(level: str) -> None:
    if level not in QUESTIONS:
        raise OptionError(
            f"{level!r} is no level of expertise{did_you_mean(level, list(QUESTIONS))}.",
            f"Use {', '.join(QUESTIONS)}.",
        )
