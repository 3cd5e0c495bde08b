"""A gang in any order of events: every group runs, a device runs one part at a time, the gang always ends,
and its session is as it was unless the gang is done. Preempted and resumed, a gang runs nothing twice."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import sampled

from djinn_lab.pool.gangs.state_machine import (
    CancelPart,
    CloseGroup,
    EndGang,
    GangPreempted,
    GangStateMachine,
    Group,
    Order,
    PartName,
    PreemptPart,
    ReleaseDevice,
    RequestMemory,
    RunPart,
    WithdrawGroup,
)

HOME, OTHER = "cpu:0", "cpu:1"
BESIDE = tuple(Group(lane) for lane in range(5))
"""Groups that wait for none."""
DEVICES = [f"cpu:{number}" for number in range(4)]


class World:
    """Workers, session memory and the queue, as a gang sees them. ``sessions``: the device of each group's
    session. ``kept``: parts that were stopped between two ops and have not ended. ``aside``: whether the gang
    is preempted and has given up all its devices."""

    def __init__(self, members: list[str], groups: Sequence[Group], prelude: bool) -> None:
        self.groups = groups
        self.machine = GangStateMachine(members[0], members, groups, prelude)
        self.home = members[0]
        self.held = set(members)
        self.kept: set[PartName] = set()
        self.pausing: set[PartName] = set()
        self.aside = False
        self.stuck: int | None = None
        self.asked: dict[int, str] = {}
        self.running: dict[PartName, str] = {}
        self.stopping: set[PartName] = set()
        self.sessions: dict[int, str] = {}
        self.finished: list[PartName] = []
        self.written = False
        self.end: EndGang | None = None

    def hear(self, orders: list[Order]) -> None:
        for order in orders:
            assert self.end is None, f"{order} after the end"
            assert not self.aside or isinstance(order, CloseGroup), f"{order} while it is preempted"
            match order:
                case RequestMemory(group, device):
                    assert device in self.held
                    assert (group in self.sessions) == (group in self.kept)
                    assert device not in (*self.running.values(), *self.asked.values())
                    assert set(self.groups[group].after) <= set(self.finished)
                    self.asked[group] = self.sessions[group] = device
                case RunPart(part, device):
                    assert device in self.held
                    assert device not in self.running.values()
                    assert part not in self.running
                    assert isinstance(part, int) or device == self.home
                    assert part not in self.finished or part == "undo"
                    if isinstance(part, int):
                        assert self.sessions[part] == device
                    self.written = self.written or part == "epilogue"
                    self.running[part] = device
                case CancelPart(part, device):
                    assert self.running[part] == device
                    self.stopping.add(part)
                case PreemptPart(part, device):
                    assert self.running[part] == device
                    self.pausing.add(part)
                case WithdrawGroup(group):
                    assert group in self.kept
                    assert group in self.sessions
                    self.asked.pop(group, None)
                case CloseGroup(group):
                    del self.sessions[group]
                    self.asked.pop(group, None)
                    ends = self.machine.phase in ("stopping", "undo", "over") or group == self.stuck
                    assert ends or group not in self.kept, "what it made is lost"
                    self.kept.discard(group)
                case GangPreempted():
                    assert not self.running
                    assert not self.asked
                    self.held, self.aside = set(), True
                case ReleaseDevice(device):
                    assert device != self.home
                    assert device not in self.running.values()
                    self.held.remove(device)
                case EndGang():
                    self.end = order

    def answer(self, part: PartName, failed: bool) -> None:
        self._off(part)
        self.kept.discard(part)
        if failed:
            self.hear(self.machine.failed(part, "it broke"))
            return
        self.finished.append(part)
        self.written = self.written and part != "undo"
        self.hear(self.machine.done(part))

    def stop(self, part: PartName) -> None:
        """Stop a part between two ops: for good if it was cancelled, else to resume later."""
        keeps = part in self.pausing and part not in self.stopping
        self._off(part)
        if keeps:
            self.kept.add(part)
        else:
            self.kept.discard(part)
        self.hear(self.machine.stopped(part))

    def _off(self, part: PartName) -> None:
        del self.running[part]
        self.stopping.discard(part)
        self.pausing.discard(part)

    def resume(self, members: list[str]) -> None:
        self.home, self.held, self.aside = members[0], set(members), False
        self.hear(self.machine.resume(self.home, members))

    def cannot_move(self, group: int) -> None:
        """Session memory cannot move it to the device where its memory was requested."""
        self.stuck = group
        self.hear(self.machine.stuck(group))
        self.stuck = None

    def memory_says(self, group: int, granted: bool) -> None:
        del self.asked[group]
        course = self.machine
        self.hear(course.granted(group) if granted else course.withheld(group, "it is full"))

    def kill(self, device: str) -> None:
        self.held.discard(device)
        for table in (self.running, self.asked):
            for part in [part for part, where in table.items() if where == device]:
                del table[part]  # type: ignore[attr-defined]
                if table is self.running:
                    self.kept.discard(part)
                self.stopping.discard(part)
                self.pausing.discard(part)
        self.hear(self.machine.died(device))


def over(world: World) -> EndGang:
    assert world.end is not None
    assert not world.running
    assert not world.asked
    assert not world.sessions
    return world.end


@st.composite
def dependent_groups(draw: st.DrawFn) -> list[Group]:
    """Draw up to five groups in up to three lanes, each of which waits for some of those before it."""
    count = draw(st.integers(1, 5))
    return [
        Group(
            draw(st.integers(0, 2)),
            tuple(sorted(draw(st.sets(st.integers(0, number - 1))))) if number else (),
        )
        for number in range(count)
    ]


@settings(max_examples=sampled(500, 120), deadline=None)
@given(
    st.integers(1, 4),
    st.one_of(dependent_groups(), st.integers(1, 5).map(lambda count: list(BESIDE[:count]))),
    st.booleans(),
    st.data(),
)
def test_gang_in_any_order_of_events_ends_consistently(
    members: int, groups: list[Group], prelude: bool, data: st.DataObject
) -> None:
    world = World(DEVICES[:members], groups, prelude)
    world.hear(world.machine.begin())
    troubles, pauses = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    for _ in range(150):
        if world.end is not None:
            break
        if world.aside:
            count = data.draw(st.integers(1, 4))
            assert 1 <= world.machine.useful_devices <= len(groups)
            world.resume(data.draw(st.permutations(DEVICES))[:count])
            continue
        steps: list[tuple[str, PartName | str]] = [("answer", part) for part in world.running]
        steps += [("stop", part) for part in sorted(world.pausing | world.stopping, key=str)]
        steps += [("memory", group) for group in world.asked]
        if pauses:
            steps += [("pause", "")]
        if troubles:
            steps += [("kill", device) for device in sorted(world.held - {world.home})]
            steps += [("stuck", group) for group in world.asked if group in world.kept]
            steps += [("cancel", "")]
        what, which = data.draw(st.sampled_from(steps))
        trouble = troubles > 0 and data.draw(st.booleans())
        troubles -= trouble or what in ("kill", "cancel")
        pauses -= what == "pause"
        step(world, what, which, trouble)
    end = over(world)
    if end.how == "done":
        assert sorted(map(str, world.finished)) == sorted(
            map(str, [*range(len(groups)), "epilogue", *(["prelude"] if prelude else [])])
        )
        assert world.held == {world.home}
    else:
        assert not world.written, "the session keeps what a part wrote"
        assert end.how == "cancelled" or end.why


def step(world: World, what: str, which: PartName | str, trouble: bool) -> None:
    match what:
        case "answer":
            assert which != ""
            world.answer(which, trouble and which != "undo")  # type: ignore[arg-type]
        case "stop":
            world.stop(which)  # type: ignore[arg-type]
        case "memory":
            assert isinstance(which, int)
            world.memory_says(which, not trouble)
        case "stuck":
            assert isinstance(which, int)
            world.cannot_move(which)
        case "pause":
            world.hear(world.machine.preempt())
        case "kill":
            world.kill(str(which))
        case _:
            world.hear(world.machine.cancel())


def test_preempted_gang_resumes_on_one_device() -> None:
    """The stopped parts resume one after the other; ended parts do not run again."""
    world = World([HOME, OTHER], BESIDE[:3], prelude=False)
    world.hear(world.machine.begin())
    world.memory_says(0, granted=True)
    world.memory_says(1, granted=True)
    world.hear(world.machine.preempt())
    assert world.pausing == {0, 1}
    world.stop(0)
    world.answer(1, failed=False)
    assert world.aside
    assert world.machine.useful_devices == 2
    world.resume(["cpu:2"])
    for group in (0, 2):
        assert world.asked == {group: "cpu:2"}
        world.memory_says(group, granted=True)
        world.answer(group, failed=False)
    world.answer("epilogue", failed=False)
    assert over(world) == EndGang("done")
    assert world.finished == [1, 0, 2, "epilogue"]


def test_stopped_parts_resume_on_the_devices_that_hold_them() -> None:
    world = World([HOME, OTHER], BESIDE[:2], prelude=False)
    world.hear(world.machine.begin())
    world.memory_says(0, granted=True)
    world.memory_says(1, granted=True)
    world.hear(world.machine.preempt())
    world.stop(1)
    world.stop(0)
    world.resume([OTHER, HOME])
    assert world.asked == {0: HOME, 1: OTHER}


def test_gang_without_part_memory_runs_as_one_segment() -> None:
    world = World([HOME, OTHER], BESIDE[:2], prelude=False)
    world.hear(world.machine.begin())
    world.memory_says(0, granted=False)
    world.memory_says(1, granted=False)
    assert over(world) == EndGang("whole", "it is full")


def test_two_groups_fit_on_the_one_member_that_is_left() -> None:
    world = World([HOME, OTHER], BESIDE[:2], prelude=True)
    world.hear(world.machine.begin())
    world.answer("prelude", failed=False)
    world.memory_says(0, granted=True)
    world.memory_says(1, granted=True)
    world.kill(OTHER)
    world.answer(0, failed=False)
    assert world.asked == {1: HOME}
    world.memory_says(1, granted=True)
    world.answer(1, failed=False)
    world.answer("epilogue", failed=False)
    assert over(world) == EndGang("done")


def test_a_group_begins_when_those_that_it_waits_for_have_ended() -> None:
    """Two steps of two layers, as a wavefront: the other device is kept for what comes."""
    groups = [Group(0), Group(1, (0,)), Group(0, (0,)), Group(1, (1, 2))]
    world = World([HOME, OTHER], groups, prelude=False)
    world.hear(world.machine.begin())
    assert world.asked == {0: HOME}
    assert world.held == {HOME, OTHER}
    world.memory_says(0, granted=True)
    world.answer(0, failed=False)
    assert world.asked == {1: HOME, 2: OTHER}
    world.memory_says(1, granted=True)
    world.memory_says(2, granted=True)
    world.answer(2, failed=False)
    assert world.held == {HOME}, "what is left is in one lane"
    world.answer(1, failed=False)
    assert world.asked == {3: HOME}
    world.memory_says(3, granted=True)
    world.answer(3, failed=False)
    world.answer("epilogue", failed=False)
    assert over(world) == EndGang("done")


def test_last_device_is_released_before_the_epilogue_where_the_home_had_no_memory() -> None:
    world = World([HOME, OTHER], BESIDE[:2], prelude=False)
    world.hear(world.machine.begin())
    world.memory_says(0, granted=False)
    world.memory_says(1, granted=True)
    world.answer(1, failed=False)
    world.memory_says(0, granted=True)
    assert world.held == {HOME, OTHER}
    world.answer(0, failed=False)
    assert world.running == {"epilogue": HOME}
    assert world.held == {HOME}
