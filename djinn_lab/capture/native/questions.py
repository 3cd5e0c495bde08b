"""What the native side asks Python; registered once in a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload

from djinn_lab.capture.host.interrupts import whole
from djinn_lab.capture.host.ops import MADE_HERE, MOVES_DATA, SEES_ALL_MEMORY
from djinn_lab.capture.lazy import LazyKind, present, register
from djinn_lab.capture.native.extension import native
from djinn_lab.capture.native.tensor_methods import install
from djinn_lab.capture.sending.segment import pauses
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.system.processes import after_fork

if TYPE_CHECKING:
    from djinn_lab.capture.native.recorder import NativeRecorder

RECORD = object()
"""Python's answer: the arguments are ready, record the op."""
_aten = torch.ops.aten
_ALIASES = {_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default}


def _describe(func: OpOverload) -> dict[str, object]:
    """Return the facts that the native side asks once of an op; see ``OpInfo``."""
    signature = signature_of(func)
    return {
        "ordinary": signature.ordinary_native,
        "stays": signature.is_view or func in MOVES_DATA or func in SEES_ALL_MEMORY,
        "view": signature.is_view,
        "random": signature.random,
        "alias": func in _ALIASES,
        "made_here": func in MADE_HERE,
        "written": list(signature.written),
        "written_in_training": list(signature.written_in_training),
    }


def _asked(method: Callable[..., object]) -> Callable[..., object]:
    """Wrap a method as the native side calls it: with a weak reference to the recorder, and held."""

    @whole
    @wraps(method)
    def ask(reference: Callable[[], NativeRecorder | None], *args: object) -> object:
        __tracebackhide__ = True
        recorder = present(reference())
        try:
            return method(recorder, *args)
        except BaseException as error:  # noqa: BLE001 - re-raised as it is
            raise error.with_traceback(None) from None  # the frames above are the user's; ours say nothing

    return ask


_prepared: list[bool] = []


def introduce(recorder: type[NativeRecorder]) -> None:
    """Register, once in a process, what the native side calls and how torch.Tensor shows lazy tensors."""
    if _prepared:
        return
    _prepared.append(True)
    native.prepare(
        _describe,
        _asked(recorder.plan),
        _asked(recorder.dispatch),
        _asked(recorder.outside),
        _asked(recorder.allow_cut),
        _asked(recorder.run_dynamic),
        _asked(recorder.draw),
        _asked(recorder.stream),
        _asked(lambda it, *call: it.layouts.fit(*call)),
        _asked(recorder.materialize),
        RECORD,
        _asked(recorder.enter_root),
        _asked(recorder.enter_module),
    )
    register(
        LazyKind(
            is_lazy=native.is_lazy,
            recorder_of=lambda tensor: native.owner_of(tensor)(),
            memory_of=lambda tensor: native.storage_of(tensor).handle,
        )
    )
    pauses.append(native.Paused)
    after_fork(native.leave_after_fork)
    install()
