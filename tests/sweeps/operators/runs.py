"""Runs one variant eagerly and captured, and says how they compare."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from in_process import InProcessBackend, cell
from sweeps.operators.outcomes import (
    MOVED,
    ROUNDED,
    UNDEFINED,
    WRONG_VALUE,
    Layout,
    Outcome,
    Raised,
    Returned,
    Verdict,
    compare,
    memory_of,
    nearly_equal,
)
from sweeps.operators.samples import SEED, Copy
from sweeps.operators.variants import Variant
from torch.utils import _pytree as pytree

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder, make_recorder

MODES = ("plain", "lazy")
"""Inputs made before the cell, and inputs that a captured cell made."""
FILLINGS = (0x00, 0x01, 0x7F, 0xFE, 0xFF) * 4
"""What torch may find where it initialises nothing."""
_LIBC = ctypes.CDLL(None)
_M_PERTURB = -6
_ANOTHER_THREAD = ThreadPoolExecutor(1)


Enter = Callable[[Recorder], AbstractContextManager[object]]


def _in_this_process() -> Recorder:
    return make_recorder(InProcessBackend())


class Bench:
    """One recorder, used until something goes wrong with it. ``opened``: where from, at first one with an
    interpreter in this process; ``enter``: what begins a cell of it."""

    def __init__(self, opened: Callable[[], Recorder] = _in_this_process, enter: Enter = cell) -> None:
        self._opened, self._enter = opened, enter
        self._recorder: Recorder | None = None

    def judge(self, variant: Variant, mode: str) -> Verdict:
        with _quiet():
            eager = eager_outcome(variant)
            captured = self._captured(variant, mode)
            verdict = compare(eager, captured)
            if verdict.outcome == WRONG_VALUE:
                verdict = _explained(verdict, variant, eager, captured)
        return verdict

    def _captured(self, variant: Variant, mode: str) -> Outcome:
        recorder = self._recorder or self._opened()
        self._recorder = None
        try:
            outcome = _run(recorder, variant, mode, self._enter)
        except Exception as error:  # noqa: BLE001 - whatever is raised is what the sweep is about
            return Raised(error)
        self._recorder = recorder
        return outcome


def _run(recorder: Recorder, variant: Variant, mode: str, enter: Enter) -> Returned:
    copy = Copy(variant.tree)
    if mode == "plain":
        tree = copy.tree()
    else:
        with enter(recorder):
            tree = copy.tree(torch.clone)
    torch.manual_seed(SEED)
    with enter(recorder):
        result = variant.call(tree)
        leaves, structure = pytree.tree_flatten((tree, result))
        layouts = _layouts(leaves)
    stream = torch.get_rng_state()
    memory = memory_of(leaves)
    return Returned(structure, _fetched(recorder, leaves), layouts, memory, stream)


def eager_outcome(variant: Variant, shift: int = 0) -> Outcome:
    """Call it in plain torch. ``shift``: by how many elements all memory shall lie elsewhere."""
    copy = Copy(variant.tree)
    tree = copy.tree(lambda memory: _shifted(memory, shift)) if shift else copy.tree()
    torch.manual_seed(SEED)
    try:
        result = variant.call(tree)
    except Exception as error:  # noqa: BLE001 - the captured run must raise the same
        return Raised(error)
    leaves, structure = pytree.tree_flatten((tree, result))
    return Returned(structure, leaves, _layouts(leaves), memory_of(leaves), torch.get_rng_state())


def _shifted(memory: torch.Tensor, elements: int) -> torch.Tensor:
    return torch.cat([memory.new_zeros(elements), memory])[elements:]


def _explained(verdict: Verdict, variant: Variant, eager: Outcome, captured: Outcome) -> Verdict:
    """Does eager torch itself give other values again, with other memory to pick up or to lie in?"""
    for attempt, byte in enumerate(FILLINGS):
        with _allocations_filled(byte):
            again = (
                eager_outcome(variant)
                if attempt % 2
                else _ANOTHER_THREAD.submit(eager_outcome, variant).result()
            )
        if compare(eager, again).outcome == WRONG_VALUE:
            return Verdict(UNDEFINED)
    if not nearly_equal(eager, captured):
        return verdict
    for shift in range(1, 8):
        if compare(eager, eager_outcome(variant, shift)).outcome == WRONG_VALUE:
            return Verdict(MOVED, verdict.reason)
    return Verdict(ROUNDED, verdict.reason)


@contextmanager
def _allocations_filled(byte: int) -> Iterator[None]:
    """All memory that the C library gives out holds ``byte``, except what its threads keep for themselves."""
    _LIBC.mallopt(_M_PERTURB, ~byte & 0xFF)
    try:
        yield
    finally:
        _LIBC.mallopt(_M_PERTURB, 0)


def _layouts(leaves: list[Any]) -> list[Layout | None]:
    return [Layout.of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def _fetched(recorder: Recorder, leaves: list[Any]) -> list[Any]:
    lazy = [leaf for leaf in leaves if is_lazy(leaf)]
    plain = iter(recorder.fetch_tensors(lazy, "compared"))
    return [next(plain) if is_lazy(leaf) else leaf for leaf in leaves]


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
