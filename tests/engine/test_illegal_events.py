"""An event that cannot happen changes nothing in the engine, whatever its type."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable, Mapping, Set
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab import engine, jobs, memory
from djinn_lab.events import IllegalEvent
from djinn_lab.simulator.pool import MIB, SimulatedPool

KINDS = sorted(typing.get_args(engine.Event), key=lambda kind: kind.__name__)
NAMES = {
    "device": ("cpu:0", "cpu:1", "cpu:9"),
    "session": ("ann", "bob", "part", "nobody"),
    "job": ("runs", "waits", "ended", "unknown"),
    "part": ("part", "new part", "ann"),
    "kind": ("store", "restore", "move"),
    "phase": ("COMPUTE", "IO_WAIT", "SOON", "SLEEP"),
    "priority": ("NORMAL", "HIGH", "NONE"),
    "outcome": ("done", "failed", "cancelled", "odd"),
    "queue_policy": ("default", "odd"),
    "policy": ("default", "odd"),
}
NUMBERS = (-1, 0, 1, 2, 5 * MIB, 2000 * MIB)


def values(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Draw a value of a field: of its type, and known to the pool as often as not."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(name, one) for one in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (tuple, frozenset, list):
        one = values(name.removesuffix("s"), arguments[0])
        return st.lists(one, max_size=2).map(frozenset if origin is frozenset else tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys = values(name.partition("_")[0], arguments[0])
        return st.dictionaries(keys, values(name, arguments[1]), max_size=2)
    if hint is type(None):
        return st.none()
    if hint is bool:
        return st.booleans()
    if hint in (int, float):
        return st.sampled_from(NUMBERS).map(hint)
    if hint is str:
        return st.sampled_from(NAMES.get(name, ("x", "")))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    if not issubclass(hint, msgspec.Struct):
        return st.sampled_from(list(memory.POLICIES.values()))
    return structs(hint, whole=hint is jobs.SegmentSubmitted)


def structs(kind: Any, whole: bool) -> st.SearchStrategy[Any]:
    """Draw an event, or a part of one with its required fields, and the others where ``whole``."""
    hints = typing.get_type_hints(kind)
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    drawn = {
        name: values(name, hint)
        for name, hint in hints.items()
        if name in kind.__struct_fields__ and name != "at_s"
    }
    optional = {name: one for name, one in drawn.items() if name not in required and whole}
    needed = {name: one for name, one in drawn.items() if name in required}
    now = {"at_s": 20.0} if "at_s" in kind.__struct_fields__ else {}
    return st.fixed_dictionaries(needed, optional=optional).map(lambda given: kind(**now, **given))


def picture(value: object, seen: dict[int, int]) -> object:
    """Return all that can be reached from an object, comparable by ``==``."""
    if value is None or isinstance(value, str | bytes | int | float | enum.Enum | type):
        return value
    if callable(value) and not hasattr(value, "__dict__"):
        return "callable"
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, Mapping):
        return [(picture(key, seen), picture(one, seen)) for key, one in value.items()]
    if isinstance(value, Set):
        return sorted(map(repr, value))
    if isinstance(value, Iterable) and not hasattr(value, "__dict__") and hasattr(value, "__len__"):
        return [picture(one, seen) for one in value]
    names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__struct_fields__", ())]
    names += [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
    fields = {name: getattr(value, name, None) for name in names if not name.startswith("__")}
    return (type(value).__name__, [(name, picture(one, seen)) for name, one in fields.items()])


def busy_pool() -> SimulatedPool:
    """Two devices, one job that runs, one that waits, one that ended, and a gang part."""
    pool = SimulatedPool(2, 1000)
    for name in ("ann", "bob"):
        pool.open(name)
    pool.submit("ended", "ann", seconds=0.1)
    pool.run(5.0)
    pool.submit("runs", "ann", seconds=100.0, mib=20)
    pool.submit("waits", "ann", seconds=100.0)
    pool.run(10.0)
    pool.send(engine.PartMemoryRequested(10.0, "part", "ann", "cpu:1", 0, MIB, 2))
    return pool


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_illegal_event_of_any_type_changes_nothing(kind: type, data: st.DataObject) -> None:
    core = busy_pool().engine
    event = data.draw(structs(kind, whole=True))
    before = picture(core, {})
    try:
        core.handle(event)
    except IllegalEvent:
        assert picture(core, {}) == before
        core.validate()


@pytest.mark.parametrize(
    "event",
    [
        engine.WorkerDied(20.0, "cpu:9", {}, None),
        memory.HeartbeatChanged(20.0, "cpu:0", True),
        engine.SegmentStopped(20.0, "unknown", 0, 0),
        engine.SegmentStopped(20.0, "runs", 7, 0),
        engine.PartMemoryRequested(20.0, "new part", "ann", "cpu:9", 0, MIB, 2),
        memory.SessionClosed(20.0, "nobody"),
        jobs.DeviceLost(20.0, "cpu:9", "gone"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_of_both_cores_are_checked_before_either_changes(event: engine.Event) -> None:
    core = busy_pool().engine
    before = picture(core, {})
    with pytest.raises(IllegalEvent):
        core.handle(event)
    assert picture(core, {}) == before
