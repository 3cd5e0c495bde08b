"""What a scheduler may do to a plan beyond program order on the first device that fits: its features.

A feature is one pure function from a :class:`Draft` of the plan to the next draft, which leaves a sentence
with its numbers. A mode is a set of features (:mod:`djinn_lab.scheduler.modes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType

import msgspec

from djinn_lab.config.fields import did_you_mean
from djinn_lab.config.workload import Guess
from djinn_lab.errors import OptionError
from djinn_lab.scheduler.memory_order import MemoryOrder
from djinn_lab.scheduler.memory_plan import plan_memory
from djinn_lab.scheduler.ordering import Arrangement
from djinn_lab.scheduler.profiles import SCHEDULER_PROFILES, SchedulerProfile
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.patterns import Pattern, find_patterns
from djinn_lab.srg.patterns.flow import Flow
from djinn_lab.units import counted, format_bytes

Groups = tuple[tuple[int, ...], ...]


class Draft(msgspec.Struct, frozen=True):
    """A plan before a device is chosen. ``chosen``: the user chose the profile, so that no feature replaces
    it. ``reserve_fraction``: share of a device's memory that stays free. ``compares``: all devices are
    candidates, not only the first that fits. ``groups``: node ids that must stay on one device. ``reasons``:
    a sentence of each feature."""

    profile: SchedulerProfile
    chosen: bool
    arranged: Arrangement
    groups: Groups
    reserve_fraction: float = 0.0
    compares: bool = False
    reasons: tuple[str, ...] = ()


class Feature(msgspec.Struct, frozen=True):
    """``changes``: what of a schedule it may change. ``apply``: returns the next draft, and its sentence."""

    name: str
    changes: str
    apply: Callable[[SRG, Draft], tuple[Draft, str]]

    def applied(self, srg: SRG, draft: Draft) -> Draft:
        """Return the next draft with the feature's sentence among its reasons."""
        changed, sentence = self.apply(srg, draft)
        reason = f"Feature {self.name}: {sentence}."
        return msgspec.structs.replace(changed, reasons=(*draft.reasons, reason))


def workload_of(srg: SRG) -> Guess:
    """Return what kind of work a graph is, by the phases of its nodes: gradients and optimizer steps are
    training, reading a growing KV cache is serving, all else is inference."""
    phases = Counter(node.phase for node in srg.nodes)
    training, decoding = phases["backward"] + phases["optimizer"], phases["decode"]
    if training:
        return Guess("research_training", f"{counted(training, 'node')} of its backward or optimizer phase")
    if decoding:
        return Guess("llm_serving", f"{counted(decoding, 'node')} of its decode phase")
    return Guess("basic_inference", "no gradients and no decode phase in it")


def _workload(srg: SRG, draft: Draft) -> tuple[Draft, str]:
    guess = workload_of(srg)
    if draft.chosen:
        return draft, f"the graph is {guess.workload}; profile {draft.profile.name} was chosen and stays"
    profile = SCHEDULER_PROFILES[guess.workload]
    return msgspec.structs.replace(draft, profile=profile), f"profile {profile.name}, for {guess.evidence}"


def _reserve(_srg: SRG, draft: Draft) -> tuple[Draft, str]:
    share = draft.profile.reserve_fraction
    return (
        msgspec.structs.replace(draft, reserve_fraction=share),
        f"devices that keep {share:.0%} of their memory free go before all others",
    )


def _placement(_srg: SRG, draft: Draft) -> tuple[Draft, str]:
    sentence = f"all devices are compared for {draft.profile.objective}"
    return msgspec.structs.replace(draft, compares=True), sentence


def _colocation(srg: SRG, draft: Draft) -> tuple[Draft, str]:
    joined = _cache_groups(srg, find_patterns(srg))
    if not joined:
        return draft, "no KV cache grows in this graph"
    groups = _united((*draft.groups, *joined))
    sentence = (
        f"{counted(len(joined), 'appended KV cache')}, each in a group with the attention that reads it"
    )
    return msgspec.structs.replace(draft, groups=groups), sentence


def _cache_groups(srg: SRG, patterns: Sequence[Pattern]) -> list[tuple[int, ...]]:
    """Return, for each append to a KV cache, its nodes with those of the attentions that read it."""
    flow = Flow(srg)
    attentions = [pattern.nodes for pattern in patterns if pattern.kind == "attention"]
    groups: list[tuple[int, ...]] = []
    for pattern in patterns:
        if pattern.kind == "kv append":
            readers = {reader for node in pattern.nodes for reader in flow.after(node)}
            reading = [nodes for nodes in attentions if readers & set(nodes)]
            if reading:
                groups.append(tuple(sorted({*pattern.nodes, *(one for nodes in reading for one in nodes)})))
    return groups


def _united(groups: Iterable[Sequence[int]]) -> Groups:
    """Unite groups that share nodes."""
    group_of: dict[int, set[int]] = {}
    for group in groups:
        united = set(group).union(*(group_of[node] for node in group if node in group_of))
        group_of.update(dict.fromkeys(united, united))
    distinct = {id(group): group for group in group_of.values()}
    return tuple(sorted(tuple(sorted(group)) for group in distinct.values()))


def _order_for_memory(srg: SRG, draft: Draft) -> tuple[Draft, str]:
    before_bytes = plan_memory(srg, draft.arranged.order).peak_bytes
    arranged = draft.arranged.then(srg, MemoryOrder())
    if arranged is draft.arranged:
        return draft, f"no order was found with a peak below {format_bytes(before_bytes)}"
    after_bytes = plan_memory(srg, arranged.order).peak_bytes
    sentence = (
        f"another order lowers the peak from {format_bytes(before_bytes)} to {format_bytes(after_bytes)}"
    )
    return msgspec.structs.replace(draft, arranged=arranged), sentence


FEATURES = MappingProxyType(
    {
        feature.name: feature
        for feature in (
            Feature("workload", "the profile, by the graph's phases, where none was chosen", _workload),
            Feature("reserve", "candidates: devices that keep the profile's reserve go first", _reserve),
            Feature("placement", "the device: all are compared for the profile's objective", _placement),
            Feature("colocation", "groups: KV caches with the attention that reads them", _colocation),
            Feature("order_for_memory", "the order, where another one lowers the peak", _order_for_memory),
        )
    }
)
"""By name, in the order in which they are applied. Read-only."""


def feature_named(name: str) -> Feature:
    """Return a feature. Raises OptionError with the nearest name for an unknown one."""
    if name not in FEATURES:
        raise OptionError(
            f"{name!r} is no feature of the scheduler{did_you_mean(name, list(FEATURES))}.",
            f"Use one of {', '.join(FEATURES)}.",
        )
    return FEATURES[name]


def checked_switch(name: str, on: bool) -> tuple[str, bool]:
    """Return a feature's name and what it is switched to. Raises OptionError for an unknown feature, and for
    a switch that is neither True nor False."""
    if not isinstance(on, bool):
        raise OptionError(f"{on!r} switches no feature.", "Give True or False.")
    return feature_named(name).name, on


def drafted(srg: SRG, start: Draft, names: Iterable[str]) -> Draft:
    """Return the draft with the named features applied, in the order of :data:`FEATURES`."""
    on = frozenset(names)
    draft = start
    for feature in FEATURES.values():
        if feature.name in on:
            draft = feature.applied(srg, draft)
    return draft
