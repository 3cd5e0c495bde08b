"""Trials of kernels on zeros, in a process of their own.

A few CPU kernels lay their results out otherwise than torch's shape rules say, and eager torch's own words of
refusal come from kernels, too. But data that no user gave may be what a kernel does not expect: LAPACK wrote
over the heap for pivots of zero. So no kernel runs in the notebook's process for its shapes: a process is
started for the first trial. Where it dies, the call counts as one whose shapes depend on data.
"""

from __future__ import annotations

import atexit
import builtins
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch
from torch._ops import OpOverload

import djinn_lab
from djinn_lab.capture.shapes.call import Call, Trial
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.capture.shapes.stand_ins import META, meta, no_elements, ones, zeros, zeros_sharing
from djinn_lab.capture.values import Layout, LazyStorage, LazyValue

TRIAL_S_MAX = 60.0
"""The process is ended after that; it takes seconds to start."""
_CPU = torch.device("cpu")
_LENGTH = struct.Struct("<Q")
_ZERO_DIVISION = "ZeroDivisionError"
_PackedLayout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bool, bool]


class _Place(NamedTuple):
    """Stands for a tensor among arguments, or for the layout and offset of one."""

    layout: _PackedLayout | None = None
    offset: int = 0


class _Value(NamedTuple):
    """As much of a value as a call reads. ``storage``: equal for those that share memory."""

    layout: Layout
    offset: int
    storage: int


class _Asked(NamedTuple):
    op: str
    values: list[tuple[_PackedLayout, int, int]]
    args: Any
    kwargs: Any
    firsts: list[int]
    like_eager: bool
    elements: bool
    default: torch.dtype


class _Answer(NamedTuple):
    """``returned``: with places for tensors. ``error``: type and text, where the kernel refused."""

    returned: Any = None
    resized: Sequence[tuple[str, int, _PackedLayout]] = ()
    error: tuple[str, str] | None = None


def tried(call: Call) -> Trial | None:
    """Return what the CPU's kernel returns for stand-ins, with meta tensors; None when it takes none, such as
    a singular matrix."""
    answer = _process.ask(_asked(call, like_eager=False))
    if answer is None or answer.error is not None:
        return None
    call.trial = Trial(
        _with_tensors(answer.returned),
        tuple((name, place, Layout.of(*layout)) for name, place, layout in answer.resized),
    )
    return call.trial


def raise_like_eager(call: Call, elements: bool = True) -> None:
    """Run once on zeros, or on tensors without ``elements``, so that type and text are eager's own. Returns
    when eager accepts the call."""
    answer = _process.ask(_asked(call, like_eager=True, elements=elements))
    if answer is not None and answer.error is not None:
        name, text = answer.error
        kind: Any = getattr(builtins, name, None) or getattr(torch._C, name, RuntimeError)
        raise kind(text)


# -------------------------------------------------------------------------------- both sides


def _packed(layout: Layout) -> _PackedLayout:
    return (layout.dtype, layout.shape, layout.stride, layout.conjugate, layout.negative)


def _without_tensors(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return _Place()
    if isinstance(item, (list, tuple)):
        return [_without_tensors(part) for part in item]
    if isinstance(item, torch.Generator):
        return None
    return item


def _with_tensors(item: Any) -> Any:
    if isinstance(item, _Place):
        if item.layout is None:
            return torch.empty(0, device=META)
        return meta(cast(LazyValue, _Value(Layout.of(*item.layout), item.offset, 0)))
    if isinstance(item, (list, tuple)):
        return type(item)(map(_with_tensors, item))
    return item


# -------------------------------------------------------------------------------- the notebook


def _asked(call: Call, like_eager: bool, elements: bool = True) -> _Asked:
    numbers: dict[LazyStorage, int] = {}
    values = [
        (_packed(value.layout), value.offset, numbers.setdefault(value.storage, len(numbers)))
        for value in call.values
    ]
    func = call.signature.func
    return _Asked(
        str(func),
        values,
        _without_tensors(list(call.args)),
        {name: _without_tensors(item) for name, item in call.kwargs.items()},
        call.firsts,
        like_eager,
        elements,
        torch.get_default_dtype(),
    )


class _TrialProcess:
    """Started when it is first asked, and again after it died. It ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, asked: _Asked) -> _Answer | None:
        """Return what it answers, None where it died of the question, or takes too long."""
        with self._lock:
            process = self._running()
            try:
                _write(process.stdin, asked)
                answer: _Answer = _read(process.stdout, TRIAL_S_MAX)
                return answer
            except (OSError, EOFError, TimeoutError):
                process.kill()
                process.wait()
                self._process = None
                return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            package = str(Path(djinn_lab.__file__).parents[1])
            path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH")) if part)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._process

    def close(self) -> None:
        """End it, at the end of this process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()


_process = _TrialProcess()


def _write(stream: IO[bytes] | None, item: object) -> None:
    assert stream is not None
    data = pickle.dumps(item)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _read(stream: IO[bytes] | None, timeout_s: float | None = None) -> Any:
    """Return the next item. Raises EOFError, and TimeoutError when none comes in time."""
    assert stream is not None
    if timeout_s is not None and not select.select([stream], [], [], timeout_s)[0]:
        raise TimeoutError
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0]))


# -------------------------------------------------------------------------------- the other process


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the worker's to report
    while True:
        asked = _read(requests)
        torch.set_default_dtype(asked.default)
        call = _call(asked)
        try:
            _write(answers, _tried_like_eager(call, asked.elements) if asked.like_eager else _tried(call))
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            _write(answers, _Answer(error=(type(error).__name__, str(error))))


def _call(asked: _Asked) -> Call:
    values: Any = [_Value(Layout.of(*layout), offset, number) for layout, offset, number in asked.values]
    namespace, name, overload = asked.op.split(".")
    func: OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    kwargs = {key: _with_tensors(item) for key, item in asked.kwargs.items()}
    call = Call(signature_of(func), _with_tensors(asked.args), kwargs, values)
    call.firsts = asked.firsts
    return call


def _tried_like_eager(call: Call, elements: bool) -> _Answer:
    stand_in = zeros_sharing(call.values) if elements else no_elements
    with torch.no_grad():
        try:
            call.run(call.arguments(stand_in, _CPU))
        except RuntimeError as error:
            if str(error) != _ZERO_DIVISION:  # of these zeros; the data may hold others
                raise
    return _Answer()


def _tried(call: Call) -> _Answer:
    for stand_in in (zeros, ones):  # valid positions; what can be divided by
        with suppress(RuntimeError, IndexError):
            returned = _described(call.run(call.arguments(stand_in, _CPU)))
            return _Answer(returned, [(name, at, _packed(new)) for name, at, new in call.resized()])
    raise RuntimeError("it takes neither zeros nor ones")


def _described(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        if item.layout is not torch.strided:
            raise RuntimeError(f"it makes a {item.layout} tensor")
        return _Place(_packed(Layout.of_tensor(item)), int(item.storage_offset()))
    if isinstance(item, (list, tuple)):
        return tuple(map(_described, item)) if isinstance(item, tuple) else [*map(_described, item)]
    return item


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as answers, suppress(EOFError, BrokenPipeError):
        os.dup2(2, 1)
        from djinn_lab.capture.shapes import trials  # or what is unpickled would be of other types

        trials._serve(sys.stdin.buffer, answers)
