"""Recording a cell without running it, and taking back what recording changed.

While a :class:`Rehearsal` lasts, programs are collected instead of sent. Afterwards the recorder, the
gradients, the optimizers and the random stream are as before: what ops wrote is not applied, and the
tensors that the cell made have no values and say so. Python's own side effects (a list that grew, a file, a
counter) are the cell's and stay.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from djinn_lab.capture.lazy import find_recorder, is_lazy
from djinn_lab.capture.recorders import Checkpoint, Recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.signature import signature_of
from djinn_lab.capture.torch_functions.hooks import UnwrappedDispatchMode
from djinn_lab.srg.program import EncodedProgram, Program

NOT_COMPUTED = "this value was not computed: dry run (its cell ran under --dry-run)."
_CELL_END = "cell end"


class RehearsalEnded(BaseException):
    """Ends a rehearsal at ``cut``, where the cell needs a value. No Exception, so that ``except Exception``
    in the cell lets it pass."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut.cause)
        self.cut = cut


class _Collector:
    """A :class:`~djinn_lab.capture.sending.backend.Backend` that runs nothing, and answers as if every
    program had run."""

    follow_max = 0

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.staged_bytes = 0
        self._blobs = 0

    def stage(self, data: memoryview) -> str:
        self.staged_bytes += data.nbytes
        self._blobs += 1
        return f"{self._blobs:064x}"

    def release(self, values: Sequence[int]) -> None:
        pass

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        self.programs.append(program.program)

    def is_done(self) -> bool:
        return True

    def result(self, cancel: bool = False) -> RunResult:
        return RunResult(len(self.programs[-1].nodes))


class _Writes(UnwrappedDispatchMode):
    """Remembers, above the recording mode, what is about to be overwritten."""

    def __init__(self, recorder: Recorder, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._recorder = recorder
        self._checkpoint = checkpoint
        self._plain: dict[int, tuple[torch.Tensor, torch.Tensor, torch.UntypedStorage]] = {}
        """By memory: a plain tensor, which may become lazy; another one on the memory; the bytes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        for tensor in signature_of(func).written_tensors(args, kwargs):
            self._remember(tensor)
        try:
            return func(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - re-raised as it is
            raise error.with_traceback(None) from None

    def _remember(self, tensor: torch.Tensor) -> None:
        if is_lazy(tensor):
            self._checkpoint.remember_write(tensor)
            return
        with paused():
            memory = tensor.untyped_storage()
            if memory.nbytes() and memory.data_ptr() not in self._plain:
                self._plain[memory.data_ptr()] = (tensor, tensor.detach(), memory.clone())

    def take_back(self) -> None:
        with paused():
            for _, plain, before in self._plain.values():
                plain.untyped_storage().copy_(before)
        for tensor, plain, _ in self._plain.values():
            if is_lazy(tensor):
                self._recorder.replace(tensor, plain)


class _TorchObjects:
    """Gradients, optimizers and learning-rate schedulers of the whole process, as they were. Its tensors may
    be those of sessions that are gone, or go meanwhile."""

    def __init__(self) -> None:
        self._tensors: list[tuple[torch.Tensor, Recorder | None, Any, torch.Tensor | None]] = []
        self._restore: list[Callable[[], None]] = []
        with paused():
            for item in gc.get_objects():
                kind = type(item)
                if issubclass(kind, torch.Tensor):
                    owner = find_recorder(item) if is_lazy(item) else None
                    value = None if owner is None else owner.value_of_lazy(item)
                    if value is not None or (item.requires_grad and item.is_leaf):
                        self._tensors.append((item, owner, value, item.grad if item.is_leaf else None))
                elif issubclass(kind, torch.optim.Optimizer):
                    self._remember_optimizer(item)
                elif issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
                    self._remember_dict(vars(item))

    def _remember_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._remember_dict(optimizer.state)
        for state in (*optimizer.state.values(), *optimizer.param_groups):
            self._remember_dict(state)

    def _remember_dict(self, held: dict[Any, Any]) -> None:
        before = dict(held)

        def restore() -> None:
            held.clear()
            held.update(before)

        self._restore.append(restore)

    def take_back(self) -> None:
        for restore in self._restore:
            restore()
        with paused():
            for tensor, owner, value, gradient in self._tensors:
                if owner is not None and value is not None:
                    owner.restore_value(tensor, value)
                if tensor.is_leaf and tensor.grad is not gradient:
                    tensor.grad = gradient


class Rehearsal:
    """Enter it outside the capture, :meth:`watch` inside. ``programs``: what would have been sent, in
    order. ``cut``: why the recording ended before the cell did. ``staged_bytes``: of large tensors that
    the cell needs on the pool."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._collector = _Collector()
        self.cut: Cut | None = None

    @property
    def programs(self) -> Sequence[Program]:
        return self._collector.programs

    @property
    def staged_bytes(self) -> int:
        return self._collector.staged_bytes

    def __enter__(self) -> Rehearsal:
        recorder = self._recorder
        recorder.segment.settle_launched()
        recorder.finish("before a dry run")
        self._objects = _TorchObjects()
        self._checkpoint = recorder.checkpoint()
        self._writes = _Writes(recorder, self._checkpoint)
        self._stream = torch.default_generator.get_state()
        segment = recorder.segment
        self._backend, segment.backend = segment.backend, self._collector
        self._allowed, segment.before_cut = segment.before_cut, self._end
        return self

    def watch(self) -> AbstractContextManager[object]:
        """A mode to enter around the cell's code."""
        self._recorder.former.rehearse()
        return self._writes

    def _end(self, cut: Cut) -> None:
        if cut.cause != _CELL_END:
            self.cut = cut
            raise RehearsalEnded(cut)

    def collect(self) -> None:
        """The cell's code is over: what it leaves pending is the rest of the plan."""
        self._recorder.segment.flush(Cut(_CELL_END, 0), self._recorder.drop_dirty())

    def __exit__(self, *failure: object) -> None:
        recorder = self._recorder
        segment = recorder.segment
        segment.backend, segment.before_cut = self._backend, self._allowed
        self._writes.take_back()
        recorder.former.put_back()
        self._objects.take_back()
        self._checkpoint.restore(NOT_COMPUTED)
        del self._objects, self._writes, self._checkpoint
        segment.random.forget()
        torch.default_generator.set_state(self._stream)
