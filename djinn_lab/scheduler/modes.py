"""Schedulers by mode: a mode is a set of features, ``auto`` chooses one for each graph."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import msgspec

from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError
from djinn_lab.scheduler.costs import CostEstimator, DeviceProfile
from djinn_lab.scheduler.environment import Environment, FixedMode, detect_environment, suitable_mode
from djinn_lab.scheduler.features import FEATURES, Draft, checked_switch, drafted
from djinn_lab.scheduler.memory_plan import plan_memory
from djinn_lab.scheduler.ordering import Arrangement, OptimizationStrategy, colocation_groups
from djinn_lab.scheduler.profiles import SchedulerProfile, profile_named
from djinn_lab.scheduler.schedule import ExecutionSchedule
from djinn_lab.scheduler.scheduler import Scheduler, check_graph
from djinn_lab.srg.graph import SRG
from djinn_lab.units import listed

Mode = Literal["auto", "basic", "semantic", "advanced"]
MODE_FEATURES: MappingProxyType[FixedMode, frozenset[str]] = MappingProxyType(
    {
        "basic": frozenset(),
        "semantic": frozenset(("workload", "reserve", "placement", "colocation")),
        "advanced": frozenset(FEATURES),
    }
)
"""Names of features by mode. ``basic``: program order on the first device that fits. Read-only."""


def mode_named(name: str) -> Mode:
    """Return a mode. Raises OptionError with the nearest name for an unknown one."""
    known: tuple[Mode, ...] = get_args(Mode)
    found = next((mode for mode in known if mode == name), None)
    if found is None:
        raise OptionError(
            f"{name!r} is no mode of the scheduler{did_you_mean(name, known)}.",
            f"Use one of {', '.join(known)}.",
        )
    return found


class AdaptiveScheduler(Scheduler, remembers=True):
    """A scheduler whose features are those of a mode, and those that :meth:`enable_feature` switched.

    ``mode``: ``auto`` chooses among the others for each graph, by
    :func:`~djinn_lab.scheduler.environment.suitable_mode`. ``environment``: with the candidates, when no
    ``devices`` are given; None looks at this machine. ``profile``: None lets the feature ``workload`` choose
    one. ``strategies`` change the order before any feature does. Raises OptionError for an unknown mode or
    profile.
    """

    def __init__(
        self,
        mode: Mode = "auto",
        *,
        environment: Environment | None = None,
        devices: Sequence[DeviceProfile] | None = None,
        profile: str | SchedulerProfile | None = None,
        cost_estimator: CostEstimator | None = None,
        strategies: Sequence[OptimizationStrategy | str] = (),
    ) -> None:
        self.mode = mode_named(mode)
        if environment is None or devices:
            environment = detect_environment(devices=devices)
        self.environment = environment
        self._switched: dict[str, bool] = {}
        self._asked = profile_named(profile) if isinstance(profile, str) else profile
        settings = self._asked or profile_named("basic_inference")
        super().__init__(cost_estimator, environment.devices, settings, strategies)
        self._settle()

    def __repr__(self) -> str:
        devices = ", ".join(device.device for device in self.devices)
        features = listed(self.features) or "no features"
        return f"<{type(self).__name__} in mode {self.mode} for {devices}: {features}>"

    def enable_feature(self, name: str, on: bool = True) -> None:
        """Switch a feature on or off for all graphs from now on, whatever the mode. Raises OptionError, as
        :func:`~djinn_lab.scheduler.features.checked_switch`."""
        self._switched = self._switched | dict([checked_switch(name, on)])
        self._settle()

    def _settle(self) -> None:
        """Let the profile, which a pool is asked for, say what the features are."""
        asked = self._asked or profile_named("basic_inference")
        reserves = "reserve" in self.features
        self.profile = asked if reserves else msgspec.structs.replace(asked, reserve_fraction=0.0)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the features that are on; with mode ``auto`` those that may be."""
        return self._features("advanced" if self.mode == "auto" else self.mode)

    def _features(self, mode: FixedMode) -> tuple[str, ...]:
        return tuple(name for name in FEATURES if self._switched.get(name, name in MODE_FEATURES[mode]))

    def _settings(self) -> tuple[object, ...] | None:
        general = super()._settings()
        if general is None:
            return None
        return (*general, self.mode, sorted(self._switched.items()), self._asked, self.environment)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return what was found of the environment, and which features that leads to, as sentences."""
        shown = listed(self.features) or "none"
        choice = (
            "chooses a mode for each graph; possible features" if self.mode == "auto" else "has the features"
        )
        switched = [f"{name} {'on' if on else 'off'}" for name, on in self._switched.items()]
        by_hand = (f"Switched: {', '.join(switched)}.",) if switched else ()
        return *self.environment.describe(), f"Mode {self.mode} {choice}: {shown}.", *by_hand

    def within(self, environment: Environment) -> Self:
        """Return the same scheduler for the devices of another environment."""
        made = self.on(environment.devices)
        made.environment = environment
        return made

    def mode_for(self, srg: SRG) -> tuple[FixedMode, str]:
        """Return the mode for a graph, and the reason."""
        if self.mode == "auto":
            return suitable_mode(self.environment, srg)
        return self.mode, "it was asked for"

    def draft(self, srg: SRG) -> Draft:
        """Return the plan before a device is chosen, with the mode's and each feature's reason."""
        mode, why = self.mode_for(srg)
        start = Draft(
            profile=self._asked or profile_named("basic_inference"),
            chosen=self._asked is not None,
            arranged=super().arrange(srg),
            groups=colocation_groups(srg),
            reasons=(f"Mode {mode}: {why}.",),
        )
        return drafted(srg, start, self._features(mode))

    @property
    def reorders(self) -> bool:
        return super().reorders or "order_for_memory" in self.features

    def arrange(self, srg: SRG) -> Arrangement:
        return self.draft(srg).arranged

    def create_schedule(self, srg: SRG) -> ExecutionSchedule:
        """Return the schedule; raise DeviceMemoryError as :meth:`Scheduler.create_schedule`."""
        draft = self.draft(check_graph(srg))
        settings = msgspec.structs.replace(draft.profile, reserve_fraction=draft.reserve_fraction)
        devices, bound_by = self.devices, self.bound_by
        if not draft.compares:
            devices, why = _first_fitting(srg, draft, devices)
            bound_by = bound_by or why
        inner = Scheduler(self.cost_estimator, devices, settings, (), bound_by)
        made = inner.schedule_in(srg, draft.arranged)
        return msgspec.structs.replace(made, groups=draft.groups, decisions=(*draft.reasons, *made.decisions))


def _first_fitting(
    srg: SRG, draft: Draft, devices: tuple[DeviceProfile, ...]
) -> tuple[tuple[DeviceProfile, ...], str]:
    """Return the first device that holds the plan with its reserve, else the first that holds it, else all,
    and why it is that one."""
    peak_bytes = plan_memory(srg, draft.arranged.order).peak_bytes
    for reserve in (draft.reserve_fraction, 0.0):
        for device in devices:
            if peak_bytes <= int(device.memory_bytes * (1 - reserve)) - device.used_bytes:
                return (device,), "the first listed that has enough memory"
    return devices, ""


def create_basic_scheduler(**settings: Any) -> AdaptiveScheduler:
    """Return ``AdaptiveScheduler("basic", **settings)``."""
    return AdaptiveScheduler("basic", **settings)


def create_semantic_scheduler(**settings: Any) -> AdaptiveScheduler:
    """Return ``AdaptiveScheduler("semantic", **settings)``."""
    return AdaptiveScheduler("semantic", **settings)


def create_advanced_scheduler(**settings: Any) -> AdaptiveScheduler:
    """Return ``AdaptiveScheduler("advanced", **settings)``."""
    return AdaptiveScheduler("advanced", **settings)
