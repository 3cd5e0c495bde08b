"""How a row of numbers, or of other values, differs from what one expects; and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from djinn_lab.srg.columns import Numbers
from djinn_lab.srg.program import ComplexNumber

_encode = msgspec.msgpack.Encoder().encode


def deviations_of(numbers: Numbers, expected: Numbers) -> list[Any]:
    """``[by how much, first place, steps to the next places ...]`` for each amount; ``-n`` among the steps
    repeats the one before n times."""
    rest = numbers - expected
    if not rest.any():
        return []
    places = np.flatnonzero(rest)
    amounts = rest[places]
    found = []
    for amount in np.unique(amounts).tolist():
        at = places[amounts == amount]
        found.append([amount, int(at[0]), *_shortened(np.diff(at).tolist())])
    return found


def _shortened(steps: list[int]) -> Iterator[int]:
    for step, group in groupby(steps):
        yield step
        again = sum(1 for _ in group) - 1
        if again:
            yield -again


def _lengthened(steps: Sequence[int], most: int) -> list[int]:
    found: list[int] = []
    for step in steps:
        if step < 0 and len(found) > 1 and len(found) - step <= most:
            found.extend([found[-1]] * -step)
        elif step < 0:
            raise ValueError("steps that lead nowhere")
        else:
            found.append(step)
    return found


def with_deviations(expected: Numbers, deviations: Sequence[Sequence[int]]) -> Numbers:
    numbers = expected.copy()
    for amount, *steps in deviations:
        numbers[np.cumsum(_lengthened(steps, len(numbers)))] += amount
    return numbers


def changes_of(before: list[Any], after: list[Any]) -> list[Any]:
    """``[first places of values that all became the same, single places]``, each followed by what is there
    now."""
    if not after or _encode(before) == _encode(after):
        return []
    old, new = [_encode(item) for item in before], [_encode(item) for item in after]
    became: dict[bytes, set[bytes]] = {}
    for was, now in zip(old, new, strict=True):
        became.setdefault(was, set()).add(now)
    together, single, seen = [], [], set()
    for place, (was, now) in enumerate(zip(old, new, strict=True)):
        if was == now:
            continue
        if len(became[was]) > 1:
            single += [place, after[place]]
        elif was not in seen:
            seen.add(was)
            together += [place, after[place]]
    return [together, single]


def with_changes(before: list[Any], changes: Sequence[Any]) -> list[Any]:
    if not changes:
        return before
    together, single = changes
    after = list(before)
    together, single = _values(together), _values(single)
    old = [_encode(item) for item in before] if together else []
    for place, value in zip(together[::2], together[1::2], strict=True):
        was = old[place]
        for other, item in enumerate(old):
            if item == was:
                after[other] = value
    for place, value in zip(single[::2], single[1::2], strict=True):
        after[place] = value
    return after


def _values(places_and_values: Sequence[Any]) -> list[Any]:
    """As they came over the wire, with complex numbers made whole again."""
    return [
        ComplexNumber(float(item["real"]), float(item["imag"])) if isinstance(item, dict) else item
        for item in places_and_values
    ]
