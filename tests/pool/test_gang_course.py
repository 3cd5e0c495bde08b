"""A gang in any order of events: every group runs, a device runs one part at a time, it always ends, and its
session is as it was unless it is done."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.pool.gangs.course import (
    AskRoom,
    EndCourse,
    ForgetGroup,
    GangCourse,
    GiveBack,
    Order,
    PartName,
    RunPart,
    StopPart,
)

HOME, OTHER = "cpu:0", "cpu:1"


class World:
    """Workers and session memory, as a gang sees them. ``sessions``: of groups, with where they are."""

    def __init__(self, members: list[str], groups: int, prelude: bool) -> None:
        self.course = GangCourse(members[0], members, groups, prelude)
        self.held = set(members)
        self.asked: dict[int, str] = {}
        self.running: dict[PartName, str] = {}
        self.stopping: set[PartName] = set()
        self.sessions: dict[int, str] = {}
        self.finished: list[PartName] = []
        self.written = False
        self.end: EndCourse | None = None

    def hear(self, orders: list[Order]) -> None:
        for order in orders:
            assert self.end is None, f"{order} after the end"
            match order:
                case AskRoom(group, device):
                    assert device in self.held
                    assert group not in self.sessions
                    assert device not in (*self.running.values(), *self.asked.values())
                    self.asked[group] = self.sessions[group] = device
                case RunPart(part, device):
                    assert device in self.held
                    assert device not in self.running.values()
                    assert part not in self.running
                    assert isinstance(part, int) or device == HOME
                    if isinstance(part, int):
                        assert self.sessions[part] == device
                    self.written = self.written or part == "epilogue"
                    self.running[part] = device
                case StopPart(part, device):
                    assert self.running[part] == device
                    self.stopping.add(part)
                case ForgetGroup(group):
                    del self.sessions[group]
                    self.asked.pop(group, None)
                case GiveBack(device):
                    assert device != HOME
                    assert device not in self.running.values()
                    self.held.remove(device)
                case EndCourse():
                    self.end = order

    def answer(self, part: PartName, failed: bool) -> None:
        del self.running[part]
        self.stopping.discard(part)
        if failed:
            self.hear(self.course.failed(part, "it broke"))
            return
        self.finished.append(part)
        self.written = self.written and part != "undo"
        self.hear(self.course.done(part))

    def memory_says(self, group: int, granted: bool) -> None:
        del self.asked[group]
        course = self.course
        self.hear(course.granted(group) if granted else course.withheld(group, "it is full"))

    def kill(self, device: str) -> None:
        self.held.discard(device)
        for table in (self.running, self.asked):
            for part in [part for part, where in table.items() if where == device]:
                del table[part]  # type: ignore[attr-defined]
                self.stopping.discard(part)
        self.hear(self.course.died(device))


def over(world: World) -> EndCourse:
    assert world.end is not None
    assert not world.running
    assert not world.asked
    assert not world.sessions
    return world.end


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.booleans(), st.data())
def test_whatever_happens(members: int, groups: int, prelude: bool, data: st.DataObject) -> None:
    world = World([f"cpu:{n}" for n in range(members)], groups, prelude)
    world.hear(world.course.begin())
    troubles = data.draw(st.integers(0, 6))
    for _ in range(100):
        if world.end is not None:
            break
        steps: list[tuple[str, PartName | str]] = [("answer", part) for part in world.running]
        steps += [("memory", group) for group in world.asked]
        if troubles:
            steps += [("kill", device) for device in sorted(world.held - {HOME})]
            steps += [("cancel", "")]
        what, which = data.draw(st.sampled_from(steps))
        trouble = troubles > 0 and data.draw(st.booleans())
        troubles -= trouble or what in ("kill", "cancel")
        match what:
            case "answer":
                assert which != ""
                world.answer(which, trouble and which != "undo")  # type: ignore[arg-type]
            case "memory":
                assert isinstance(which, int)
                world.memory_says(which, not trouble)
            case "kill":
                world.kill(str(which))
            case _:
                world.hear(world.course.cancel())
    end = over(world)
    if end.how == "done":
        assert {*range(groups), "epilogue"} <= set(world.finished)
        assert ("prelude" in world.finished) == prelude
        assert world.held == {HOME}
    else:
        assert not world.written, "the session keeps what a part wrote"
        assert end.how == "cancelled" or end.why


def test_a_gang_whose_members_have_no_room_runs_whole() -> None:
    world = World([HOME, OTHER], 2, prelude=False)
    world.hear(world.course.begin())
    world.memory_says(0, granted=False)
    world.memory_says(1, granted=False)
    assert over(world) == EndCourse("whole", "it is full")


def test_two_groups_fit_on_the_one_member_that_is_left() -> None:
    world = World([HOME, OTHER], 2, prelude=True)
    world.hear(world.course.begin())
    world.answer("prelude", failed=False)
    world.memory_says(0, granted=True)
    world.memory_says(1, granted=True)
    world.kill(OTHER)
    world.answer(0, failed=False)
    assert world.asked == {1: HOME}
    world.memory_says(1, granted=True)
    world.answer(1, failed=False)
    world.answer("epilogue", failed=False)
    assert over(world) == EndCourse("done")
