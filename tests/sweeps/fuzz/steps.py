"""A random program as data: steps that read and fill slots, in segments that are captured or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Ref:
    """The value in a slot."""

    slot: int

    def __repr__(self) -> str:
        return f"v{self.slot}"


@dataclass(frozen=True)
class Step:
    """Call operation ``op`` with ``args`` and put what it returns into ``slot``. Arguments are constants and
    references, also inside tuples and slices."""

    op: str
    args: tuple[Any, ...]
    slot: int

    def __repr__(self) -> str:
        return f"v{self.slot} = {self.op}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True)
class Segment:
    """Steps that run all captured or all eager."""

    captured: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    seed: int
    segments: tuple[Segment, ...] = field(default=())

    def without(self, slot: int) -> Program:
        """The program without the step that fills ``slot``."""
        kept = (
            replace(segment, steps=tuple(step for step in segment.steps if step.slot != slot))
            for segment in self.segments
        )
        return replace(self, segments=tuple(segment for segment in kept if segment.steps))

    @property
    def steps(self) -> Iterator[Step]:
        for segment in self.segments:
            yield from segment.steps

    def __str__(self) -> str:
        lines = []
        for segment in self.segments:
            lines.append("with cell():" if segment.captured else "# outside of a cell")
            lines += [f"    {step}" if segment.captured else f"{step}" for step in segment.steps]
        return "\n".join(lines)


class MissingSlot(Exception):
    """A step reads a slot that no step filled."""


def resolve(argument: Any, slots: dict[int, Any]) -> Any:
    """Replace references by the slots' values. Raises MissingSlot."""
    if isinstance(argument, Ref):
        if argument.slot not in slots:
            raise MissingSlot(argument.slot)
        return slots[argument.slot]
    if isinstance(argument, tuple):
        return tuple(resolve(item, slots) for item in argument)
    if isinstance(argument, slice):
        return slice(*(resolve(item, slots) for item in (argument.start, argument.stop, argument.step)))
    return argument
