"""Runs one variant eagerly and captured, and says how they compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from in_process import InProcessBackend, cell
from sweeps.operators.outcomes import Layout, Outcome, Raised, Returned, Verdict, compare, memory_of
from sweeps.operators.samples import SEED, Copy, tensors_of
from sweeps.operators.variants import Variant
from torch.utils import _pytree as pytree

from djinn_lab.capture.recorder import Recorder
from djinn_lab.capture.tensor import LazyTensor

MODES = ("plain", "lazy")
"""Inputs made before the cell, and inputs that a captured cell made."""
UNINITIALISED = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
"""Operators that return memory as they find it."""


class Bench:
    """One recorder and interpreter, used until something goes wrong with them."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def judge(self, variant: Variant, mode: str, defined: bool = True) -> Verdict:
        """``defined`` False: eager's own values mean nothing."""
        with _quiet():
            eager = _eager(variant)
            captured = self._captured(variant, mode)
            verdict = compare(eager, captured, defined)
            if defined and verdict.outcome == "wrong value" and not _repeats(variant, eager):
                verdict = compare(eager, captured, values=False)
        return verdict

    def _captured(self, variant: Variant, mode: str) -> Outcome:
        recorder = self._recorder or Recorder(InProcessBackend())
        self._recorder = None
        try:
            outcome = _run(recorder, variant, mode)
        except Exception as error:  # noqa: BLE001 - whatever is raised is what the sweep is about
            return Raised(error)
        self._recorder = recorder
        return outcome


def _run(recorder: Recorder, variant: Variant, mode: str) -> Returned:
    copy = Copy(variant.tree)
    if mode == "plain":
        tree = copy.tree()
    else:
        with cell(recorder):
            tree = copy.tree(torch.clone)
    torch.manual_seed(SEED)
    with cell(recorder):
        result = variant.call(tree)
        leaves, structure = pytree.tree_flatten((tree, result))
        layouts = _layouts(leaves)
    stream = torch.get_rng_state()
    memory = memory_of(leaves)
    return Returned(structure, _fetched(recorder, leaves), layouts, memory, stream)


def _eager(variant: Variant) -> Outcome:
    tree = Copy(variant.tree).tree()
    torch.manual_seed(SEED)
    try:
        result = variant.call(tree)
    except Exception as error:  # noqa: BLE001 - the captured run must raise the same
        return Raised(error)
    leaves, structure = pytree.tree_flatten((tree, result))
    return Returned(structure, leaves, _layouts(leaves), memory_of(leaves), torch.get_rng_state())


def _repeats(variant: Variant, first: Outcome) -> bool:
    """Does eager torch give the same again, while memory it may pick up uninitialised has changed?"""
    for fill in (1.0, float("nan")):
        used = [torch.full((max(1, tensor.numel()),), fill) for tensor in tensors_of(variant.tree)]
        del used
        if compare(first, _eager(variant)).outcome != "equal":
            return False
    return True


def _layouts(leaves: list[Any]) -> list[Layout | None]:
    return [Layout.of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def _fetched(recorder: Recorder, leaves: list[Any]) -> list[Any]:
    lazy = [leaf for leaf in leaves if type(leaf) is LazyTensor]
    plain = iter(recorder.fetch([leaf._value for leaf in lazy], "compared"))
    return [next(plain) if type(leaf) is LazyTensor else leaf for leaf in leaves]


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
