"""A program that runs in parts, here and elsewhere, is the program that ran at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from audit import audit
from random_programs import SIZE, RandomPrograms
from running_parts import run_in_parts
from test_preemption import Left, summary
from worker_kit import Device

from djinn_lab.srg import tasks
from djinn_lab.srg.branches import BranchFinder
from djinn_lab.srg.program import Program
from djinn_lab.srg.tasks import find_tasks
from djinn_lab.worker.interpreter import Outcome

MakeDevice = Callable[..., Device]
Split = tuple[Sequence[int], Sequence[Sequence[int]]]
PROGRAMS = 12


@pytest.fixture(autouse=True)
def chains_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut programs into tasks also where that would not be worth it."""
    monkeypatch.setattr(tasks, "CHAIN_SHARE", float("inf"))


class Travels:
    """Run each program of one session twice: in parts over devices, and at once on another device."""

    def __init__(self, devices: list[Device], undisturbed: Device, seed: int) -> None:
        self.random = random.Random(seed)
        self.devices, self.undisturbed = devices, undisturbed
        self.done: Counter[str] = Counter()
        made = torch.Generator().manual_seed(seed)
        for index in range(2):
            square = torch.randn(SIZE, SIZE, generator=made)
            for device in (*devices, undisturbed):
                device.blob(square, f"blob{index}")
        self.programs = RandomPrograms(seed, ["blob0", "blob1"])

    def run_one(self) -> None:
        program = self.programs.next()
        expected = self.undisturbed.try_run("ann", program)
        home = self.devices[0]
        found = self.in_parts(program)
        if found is None:
            found = home.try_run("ann", program)
        assert _comparable(found) == _comparable(expected)
        theirs = Left.of(self.undisturbed.interpreter.values_of("ann"))
        assert Left.of(home.interpreter.values_of("ann")) == theirs
        for device in self.devices:
            audit(device)
        assert all(set(device.interpreter.sessions) <= {"ann"} for device in self.devices)

    def in_parts(self, program: Program) -> Outcome | None:
        found = self.tasks(program) if self.random.random() < 0.5 else self.branches(program)
        if found is None:
            self.done["whole"] += 1
            return None
        home, *others = self.devices
        outcome = run_in_parts(home, others, program, *found, self.random)
        self.done["failed" if outcome is None else "in parts"] += 1
        return outcome

    def branches(self, program: Program) -> Split | None:
        branches = BranchFinder(program, [1.0] * len(program.nodes)).at(
            self.random.randrange(6), self.random.randrange(6)
        )
        if branches is None:
            return None
        self.done[f"{min(3, len(branches.branch_s))} branches"] += 1
        return branches.places, branches.groups(len(self.devices))

    def tasks(self, program: Program) -> Split | None:
        """Return tasks, some of which run as one part with the tasks after them."""
        tasks = find_tasks(program, [1.0] * len(program.nodes), self.random.choice((0.0, 1.5, 3.0)))
        if tasks is None:
            return None
        self.done["tasks that feed each other" if tasks.edges else "tasks"] += 1
        groups: list[list[int]] = [[]]
        for number in range(len(tasks.seconds)):
            if groups[-1] and self.random.random() < 0.7:
                groups.append([])
            groups[-1].append(number)
        return tasks.places, groups


def _comparable(outcome: Outcome) -> dict[str, object]:
    """Summarise an outcome without its count of ops: an epilogue executes fewer."""
    return summary(outcome) | {"executed": None}


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_never_notice_that_they_ran_in_parts(make_device: MakeDevice, seed: int) -> None:
    devices = [make_device() for _ in range(3)]
    travels = Travels(devices, make_device(), seed)
    for _ in range(PROGRAMS):
        travels.run_one()


def test_the_random_programs_reach_all_that_they_are_for(make_device: MakeDevice) -> None:
    done: Counter[str] = Counter()
    for seed in range(40, 56):
        travels = Travels([make_device() for _ in range(2)], make_device(), seed)
        for _ in range(PROGRAMS):
            travels.run_one()
        done += travels.done
    assert {"0 branches", "1 branches", "2 branches", "3 branches", "whole", "failed", "in parts"} <= set(
        done
    )
    assert {"tasks", "tasks that feed each other"} <= set(done)
