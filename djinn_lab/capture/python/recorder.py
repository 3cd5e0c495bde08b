"""Records torch ops as graph nodes and gets values when they are needed. One per session.

The path of one op through :meth:`PythonRecorder.dispatch`:

1. what belongs on the host stays there (:mod:`djinn_lab.capture.host.placement`); 2. the arguments become
a key, input values and scalars; the key gives a cached :class:`~djinn_lab.capture.shapes.inference.OpPlan`;
3. the outputs are wrapped and a node is appended. Nothing runs.

The :class:`~djinn_lab.capture.sending.segment.Segment` sends what is still reachable and receives the
outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from threading import RLock, get_ident
from typing import Any
from weakref import WeakSet, ref

import torch
from msgspec.structs import replace
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.arguments import Arguments
from djinn_lab.capture.former_tensors import FormerTensors, kept_former
from djinn_lab.capture.host.interrupts import locked, whole
from djinn_lab.capture.host.ops import (
    has_generator,
    names_meta,
    run_on_host,
    run_on_known_integers,
    tensors_in,
)
from djinn_lab.capture.host.placement import Placement
from djinn_lab.capture.host.turns import one_thread
from djinn_lab.capture.python.assembly import PendingSource
from djinn_lab.capture.python.autocast import FORGETTING
from djinn_lab.capture.python.histories import Histories
from djinn_lab.capture.python.host_tensors import HostTensors
from djinn_lab.capture.python.identity import is_in_a_graph, take_over
from djinn_lab.capture.python.local import run_locally
from djinn_lab.capture.python.nodes import PythonNodes
from djinn_lab.capture.python.pool_copies import PoolCopies
from djinn_lab.capture.python.resizing import Resizing
from djinn_lab.capture.python.tensor import LazyTensor, become, overrides_torch, wrap
from djinn_lab.capture.python.value_table import ValueTableCheckpoint
from djinn_lab.capture.sending.backend import Backend, Cut
from djinn_lab.capture.sending.segment import Launched, Segment, paused
from djinn_lab.capture.shapes.inference import OpPlan, Output
from djinn_lab.capture.shapes.signature import Signature, signature_of
from djinn_lab.capture.shapes.stand_ins import on_meta
from djinn_lab.capture.torch_functions.cuda_answers import cuda_answers
from djinn_lab.capture.torch_functions.hooks import kept_on_host
from djinn_lab.capture.torch_functions.optimizer_state import SteppedOptimizers
from djinn_lab.capture.torch_functions.packed_sequences import PACK, pack
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.capture.torch_functions.pool_memory import NoMemory, SessionsMemory
from djinn_lab.capture.torch_functions.refused_modules import REFUSED_MODULES
from djinn_lab.capture.torch_functions.replaced import Replacements, ask_when_data_is_set, set_data_of_torch
from djinn_lab.capture.values import Layout, LazyStorage, LazyValue
from djinn_lab.errors import CaptureError
from djinn_lab.numerics import present

_SAME_VALUE = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
_QUESTIONS: dict[OpOverload, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    torch.ops.aten.is_same_size.default: lambda one, other: one.shape == other.shape,
    torch.ops.aten._has_same_storage_numel.default: lambda one, other: _elements(one) == _elements(other),
    torch.ops.aten._has_compatible_shallow_copy_type.default: lambda one, other: type(one) is type(other),
}
"""Torch asks itself these; the answers need no values."""
_RNN_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
"""Computes differently under ``torch.no_grad()``; its last argument, else unused, says so to the worker."""
_CLONE = torch.ops.aten.clone.default


def _elements(tensor: torch.Tensor) -> int:
    """Return how many elements the memory behind a tensor has."""
    memory = (
        tensor._value.storage.nbytes if isinstance(tensor, LazyTensor) else tensor.untyped_storage().nbytes()
    )
    return memory // tensor.itemsize


def _is_lazy(item: object) -> bool:
    return type(item) is LazyTensor


def _is_known(tensor: torch.Tensor) -> bool:
    """Return whether it is a lazy 0-dim tensor whose value is here."""
    if type(tensor) is not LazyTensor or tensor._value.layout.shape:
        return False
    return tensor._value.storage.host_is_current()


class PythonRecorder:
    """``lock``: of the thread that uses it now. ``capturing``: a cell runs, in ``thread``. ``aside``: another
    session's cell runs inside it."""

    def __init__(self, backend: Backend, stream_nodes: int | None = None) -> None:
        self.dead: list[int] = []
        self.nodes = PythonNodes(self.dead)
        self.segment = Segment(backend, self.nodes, stream_nodes)
        self.table = self.nodes.table
        self.scopes = self.nodes.scopes
        self.copies = PoolCopies(self, self.segment, self.nodes)
        self.exposures = self.copies.exposures
        self.host = HostTensors(self, self.copies, self.table)
        self.host_only = False
        self.placement = Placement(self.host, self.segment, _is_lazy)
        self.former = FormerTensors(self)
        self.resizing = Resizing(self._record, self.host, self.former)
        self.lock = RLock()
        self.capturing = self.aside = False
        self.thread = 0
        self.ops_recorded = 0
        self.optimizers = SteppedOptimizers(self.why_lost)
        self._histories = Histories(self.segment)
        self.segment.followers = self.placement.writes, self._histories, self.former
        self.segment.on_not_computed = self.optimizers.undo
        self._made_before = 0
        self.owner: object = None
        _recorders.add(self)
        ask_when_data_is_set(_set_data)
        self.may_display: Callable[[], bool] = lambda: True
        self.devices: Callable[[], Sequence[PoolDevice]] = lambda: ()
        self.device_memory: SessionsMemory = NoMemory()
        self.replayable = self._for_accelerators = False

    def why_lost(self, tensor: torch.Tensor) -> str | None:
        """Return why a tensor has no value, None where it has one."""
        return self.table.lost.get(tensor._value.id) if type(tensor) is LazyTensor else None

    def value_of_lazy(self, tensor: Any) -> LazyValue:
        return tensor._value  # type: ignore[no-any-return]

    value_to_keep = value_of_lazy

    def identity_of(self, tensor: Any) -> object:
        """Return what tells the memory and the layout of a lazy tensor from others, and holds neither."""
        return ref(tensor._value)

    def begin_part(self) -> None:
        """Note that what is recorded from now on is another part of the cell, or another cell."""
        self._made_before = self.table.new_id()

    def made_in_part(self, tensor: Any) -> bool:
        """Return whether an op of this part of the cell made the memory of a tensor; what came from the host
        was there before."""
        if type(tensor) is not LazyTensor:
            return False
        storage = tensor._value.storage
        return storage.residency == "activation" and storage.id > self._made_before

    @property
    def keeps_histories(self) -> bool:
        """Keep what tensors were to autograd also where an op that wrote them has run."""
        return self._histories.keeps

    @keeps_histories.setter
    def keeps_histories(self, on: bool) -> None:
        self._histories.keeps = on

    def leave_histories(self) -> None:
        """Note that the cell has written what it writes."""
        self._histories.leave()

    def renew_views(self, views: Sequence[torch.Tensor]) -> None:
        """Leave them: Python cannot."""

    def take_histories(self, puts_back: bool) -> None:
        """Forget what tensors that the cell wrote were to autograd. ``puts_back``: let those that nothing has
        written since be that again, as far as Python can."""
        self._histories.take(puts_back)

    def remember_history(self, tensor: torch.Tensor) -> None:
        """Note that something is about to change what a tensor is to autograd."""
        self._histories.remember(tensor)

    def restore_value(self, tensor: Any, value: LazyValue) -> None:
        """Make a lazy tensor name a value again."""
        if type(tensor) is LazyTensor and tensor._value is not value:
            become(tensor, wrap(value))

    def drop_dirty(self) -> list[int]:
        """Forget what captured ops wrote to plain tensors; return the ids."""
        dirty, self.host.dirty = self.host.dirty, {}
        return [lazy._value.id for _, lazy in dirty.values()]

    def pool_id(self, tensor: Any) -> int:
        """Return the number by which the pool knows a lazy tensor."""
        return int(tensor._value.id)

    def checkpoint(self) -> ValueTableCheckpoint:
        return ValueTableCheckpoint(self.table, self.segment.backend, self.host.end_cell)

    def replace(self, lazy: torch.Tensor, plain: torch.Tensor) -> None:
        """Make the object ``lazy`` be what ``plain`` is."""
        if not take_over(lazy, plain):
            torch.utils.swap_tensors(lazy, plain)  # raises why not

    @property
    def plans_made(self) -> int:
        return self.nodes.plans_made

    @property
    def captures_here(self) -> bool:
        """Return whether a cell is captured, in this very thread, and no other session's cell inside it."""
        return self.capturing and not self.aside and self.thread == get_ident()

    # ---------------------------------------------------------------- recording

    @one_thread
    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Dispatch one op inside a captured cell."""
        signature = signature_of(func)
        if signature.ordinary and args and type(args[0]) is LazyTensor and not names_meta(args, kwargs):
            if signature.written and self._writes_shown(signature, args, kwargs):
                return self._run_here(func, args, kwargs)
            if _is_known(args[0]) and (known := self._run_known(func, args, kwargs)) is not None:
                return known
            return self._record(signature, args, kwargs)
        return self._dispatch_special(func, args, kwargs)

    def _run_known(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object | None:
        """Return what the op makes of integers that were fetched; None where it is for the pool."""
        tensors = tensors_in(args, kwargs)
        if not all(_is_known(tensor) for tensor in tensors):
            return None
        return run_on_known_integers(
            signature_of(func), tensors, lambda: run_locally(self.copies, func, args, kwargs)
        )

    def _dispatch_special(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle an op that may stay on the host, change a layout, or need no node at all."""
        if func in _SAME_VALUE and type(args[0]) is LazyTensor:
            return wrap(args[0]._value)
        if func in _QUESTIONS:
            return _QUESTIONS[func](*args)
        if func is PACK:
            return pack(self, *args, **kwargs)
        if func is _RNN_LAYER:
            args = (*args[:-1], torch.is_grad_enabled())
        signature = signature_of(func)
        if signature.mutates_layout:
            return self.resizing.change(signature, args, kwargs)
        first_is_lazy = args and _is_lazy(args[0])
        if not first_is_lazy and self.placement.is_host(
            signature, args, kwargs, tensors_in(args, kwargs), self.host_only
        ):
            return run_on_host(func, args, kwargs)
        if names_meta(args, kwargs):
            return on_meta(signature, args, kwargs)
        if (
            not signature.on_pool
            or has_generator(signature, args, kwargs)
            or any(tensor.is_nested or tensor.is_quantized for tensor in tensors_in(args, kwargs))
            or self._writes_shown(signature, args, kwargs)
        ):
            return self._run_here(func, args, kwargs)
        if (known := self._run_known(func, args, kwargs)) is not None:
            return known
        return self._record(signature, args, kwargs)

    def _run_here(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op of a captured cell on the host, on what every tensor is by now."""
        self.host.write_back("a tensor written in this cell was read on the host")
        if signature_of(func).random:
            self.segment.finish_draws("random numbers were drawn on the host")
        try:
            return run_locally(self.copies, func, args, kwargs)
        finally:
            for tensor in signature_of(func).written_tensors(args, kwargs):
                if type(tensor) is not LazyTensor:
                    self.host.forget(tensor)

    def _writes_shown(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the op would change memory that a numpy array shows; then it must do so at once, and
        here."""
        if signature.writes_first_only and type(args[0]) is LazyTensor:
            return args[0]._value.storage.exposure is not None
        written = list(signature.written_tensors(args, kwargs))
        if any(self._is_shown(tensor) for tensor in written):
            return True
        return self.host.share_memory(written, tensors_in(args, kwargs))

    def _is_shown(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is LazyTensor:
            return tensor._value.storage.exposure is not None
        return self.host.must_write(tensor)

    def _record(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.nodes.pending >= self.nodes.look_at and self.capturing:
            self.segment.stream()
        if self.host.dirty and signature.written:
            self.host.settle_views(tensors_in(args, kwargs))
        self._look_at_settings()
        call = Arguments(self.value_of, signature, args, kwargs)
        plan = self.nodes.plan(signature, call, args, kwargs)
        if plan.dynamic:
            return self._record_dynamic(signature, plan, call, args, kwargs)
        if plan.resized:
            self.resizing.fit(plan.resized, signature, args, kwargs)
            return self._record(signature, args, kwargs)
        if signature.random:
            self.segment.draw()
        self.ops_recorded += 1
        if plan.simple:
            value = self._fresh(plan.layouts[0])
            self.nodes.push(plan, call, (value.id,), (value.storage.id,), (), signature.random)
            return wrap(value)
        return self._record_aliasing(signature, plan, call, args, kwargs)

    def _look_at_settings(self) -> None:
        """Run what is pending where the next op is recorded under other numeric settings."""
        settings = present(self._for_accelerators)
        if self._for_accelerators and self.replayable:
            settings = replace(settings, replayable=True)
        if settings == self.nodes.settings:
            return
        if self.nodes.pending:
            self.segment.flush(Cut("a numeric setting was changed", self.nodes.line()))
        self.nodes.settings = settings

    def _record_aliasing(
        self,
        signature: Signature,
        plan: OpPlan,
        call: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record an op with several returns, views or writes."""
        written = self._mark_writes(signature, args, kwargs)
        returned: list[Any] = list(plan.literals)
        values: list[LazyValue | None] = []
        for index, output in enumerate(plan.outputs):
            if output is None:
                values.append(None)
                continue
            returned[index], value = self._output(signature, output, args, kwargs)
            values.append(value)
        ids = tuple(None if value is None else value.id for value in values)
        storages = tuple(None if value is None else value.storage.id for value in values)
        self.nodes.push(plan, call, ids, storages, written, signature.random)
        if plan.container is None:
            return returned[0]
        return tuple(returned) if issubclass(plan.container, tuple) else returned

    def _fresh(self, layout: Layout | None) -> LazyValue:
        assert layout is not None
        table = self.table
        return table.new_value(LazyStorage(self, table.new_id(), layout.span_bytes, "activation"), layout, 0)

    def _output(
        self, signature: Signature, output: Output, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, LazyValue]:
        if output.source is None:
            value = self._fresh(output.layout)
            return wrap(value), value
        source = signature.argument(output.source, args, kwargs)
        if isinstance(source, (list, tuple)):
            source = source[0]
        base = self.value_of(source)
        if output.written:
            return source, base
        value = self.table.new_value(base.storage, output.layout, output.offset)
        return wrap(value), value

    def _mark_writes(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, ...]:
        storages: list[int] = []
        for tensor in signature.written_tensors(args, kwargs):
            value = self.value_of(tensor)
            value.storage.written_on_pool()
            storages.append(value.storage.id)
            if not self.made_in_part(tensor):
                self.remember_history(tensor)
            if type(tensor) is not LazyTensor and value.layout.numel:
                self.host.mark_written(tensor, value)
        return tuple(storages)

    def _record_dynamic(
        self,
        signature: Signature,
        plan: OpPlan,
        call: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record an op whose result sizes depend on data: run up to it now and learn them."""
        if not signature.returns_tensors or signature.written or signature.is_view:
            return self._run_here(signature.func, args, kwargs)
        cut = Cut(signature.name, self.scopes.line())
        self.segment.before_cut(cut)
        if signature.random:
            self.segment.draw()
        self.ops_recorded += 1
        unknown = Layout.of(torch.uint8, (0,), (1,))
        values = [self._fresh(unknown) for _ in signature.return_aliases]
        ids = tuple(value.id for value in values)
        self.nodes.push(plan, call, ids, tuple(value.storage.id for value in values), (), signature.random)
        metas = self.segment.run(cut)[1]
        returned: list[torch.Tensor] = []
        for value, meta in zip(values, metas, strict=True):
            assert meta is not None
            value.layout = Layout.of_meta(meta)
            value.storage.nbytes = value.layout.span_bytes
            self.table.held[value.id] = PendingSource(
                value.storage.id, value.layout, "activation", None, None
            )
            returned.append(wrap(value))
        return returned[0] if len(returned) == 1 else tuple(returned)

    # ---------------------------------------------------------------- values

    def value_of(self, tensor: torch.Tensor) -> LazyValue:
        """Return the value of any tensor, ready to be used by the next node."""
        if type(tensor) is not LazyTensor:
            return self.host.value_of(tensor)
        value = tensor._value
        storage = value.storage
        if storage.recorder is not self:
            raise CaptureError(
                "this tensor belongs to another pool session.",
                "Use that session (a cell opens it again) or bring the tensor home: pull(model), .cpu().",
            )
        if value.generation != storage.generation or self.table.lost or self.exposures.present:
            self.copies.ready(value)
        return value

    @one_thread
    def clone(self, tensor: LazyTensor) -> torch.Tensor:
        """Return an independent lazy copy; nothing is fetched."""
        copied = self._record(signature_of(_CLONE), (tensor,), {})
        assert isinstance(copied, torch.Tensor)
        return copied

    @one_thread
    def adopt_copy(self, tensor: torch.Tensor) -> LazyTensor:
        """Return a lazy tensor with a copy of a plain tensor's present contents."""
        return self.copies.adopt_copy(tensor)

    @one_thread
    def make_plain_share(self, tensor: torch.Tensor, lazy: LazyTensor) -> None:
        """``tensor.data = lazy``: the plain tensor becomes lazy, or (where torch refuses to exchange the two)
        looks at the host's copy of the same memory."""
        with paused():
            if self.capturing:
                self.host.write_back("a tensor's data was replaced")
        with self.former.changing(tensor), paused():
            ordinary = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_in_a_graph(tensor)
            if not (ordinary and self.host.become(tensor, wrap(lazy._value))):
                set_data_of_torch(tensor, self.copies.window(lazy._value, "data"))

    @one_thread
    def make_lazy_share(self, lazy: LazyTensor, plain: torch.Tensor) -> None:
        """``lazy.data = plain``."""
        with paused():
            self.host.write_back("a tensor's memory was shared with a lazy one")
            shared = self.copies.shared(plain)
        self.look_at(lazy, shared)

    @one_thread
    def look_at(self, tensor: LazyTensor, other: LazyTensor) -> None:
        """``tensor.data = other``, where both are lazy."""
        with self.former.changing(tensor), paused():
            become(tensor, other)

    @one_thread
    def fetch(self, values: Sequence[LazyValue], cause: str) -> list[torch.Tensor]:
        """Return plain tensors over the host's copy of each value, fetched where it is not current."""
        return self.copies.fetch(values, cause)

    def fetch_tensors(self, tensors: Sequence[Any], cause: str) -> list[torch.Tensor]:
        """Fetch lazy tensors, as :meth:`fetch` does."""
        return self.fetch([tensor._value for tensor in tensors], cause)

    @one_thread
    def fetch_whole(self, tensors: Sequence[Any], cause: str) -> None:
        """Make the host's copy of the memory behind lazy tensors current, but for what is lost."""
        known = [t._value for t in tensors if t._value.generation == t._value.storage.generation]
        self.copies.fetch_whole([value for value in known if value.id not in self.table.lost], cause)

    @one_thread
    def only_on_pool(self) -> list[torch.Tensor]:
        """Return a tensor for each memory that tensors of this process hold, and the host has no copy of."""
        held = [value for value in self.table.values() if self.table.is_held(value)]
        return [wrap(value) for value in held if not value.storage.host_is_current()]

    def host_bytes(self, tensor: Any) -> torch.UntypedStorage:
        """Return the host's copy of the memory behind a lazy tensor, which must be current."""
        memory: torch.UntypedStorage | None = tensor._value.storage.host
        assert memory is not None
        return memory

    @one_thread
    def array(self, value: LazyValue, cause: str) -> Any:
        """Return a numpy array that shares memory with ``value``, as long as it lives."""
        return self.copies.array(value, cause)

    @one_thread
    def window(self, value: LazyValue, cause: str) -> torch.Tensor:
        """Return a plain tensor that shares memory with ``value``, as long as it lives."""
        return self.copies.window(value, cause)

    @one_thread
    def share_between_processes(self, value: LazyValue) -> None:
        """Move the host's copy of a value's memory to where other processes see it."""
        self.copies.share_between_processes(value)

    @one_thread
    def finish(self, cause: str) -> None:
        """Run what is pending and bring plain tensors that were written up to date."""
        self.host.write_back(cause)
        self.segment.flush(Cut(cause, 0))

    @one_thread
    def launch(self, cause: str, launched: Launched) -> bool:
        """Send what is pending without waiting, and return whether anything is under way; only plain tensors
        that were written are waited for."""
        self.host.write_back(cause)
        return self.segment.launch(Cut(cause, 0), launched)

    @one_thread
    def settle_plain(self, tensor: torch.Tensor) -> None:
        """Bring a plain tensor up to what captured ops wrote to it, if they did."""
        self.host.settle(tensor)

    @one_thread
    def put_on_pool(self, tensor: torch.Tensor) -> bool:
        """Turn a plain tensor into a lazy one in place, where that can be."""
        with paused():
            self.host.settle(tensor)
            return self.host.make_lazy_in_place(tensor, "weight")

    # ---------------------------------------------------------------- outside cells

    @one_thread
    def run_outside(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op on lazy tensors outside a captured cell. Views stay lazy (they must share memory); the
        rest runs here."""
        if func in _SAME_VALUE:
            return wrap(args[0]._value)
        if func in _QUESTIONS:
            return _QUESTIONS[func](*args)
        signature = signature_of(func)
        if signature.as_view is not None and type(args[0]) is LazyTensor:
            become(args[0], self.run_outside(signature.as_view, args, kwargs))
            return args[0]
        if not signature.is_view or signature.mutates_layout or type(args[0]) is not LazyTensor:
            return run_locally(self.copies, func, args, kwargs)
        base = args[0]._value
        if base.generation == base.storage.generation:
            return self._record(signature, args, kwargs)
        plan = self.nodes.plan(
            signature, Arguments(lambda tensor: base, signature, args, kwargs), args, kwargs
        )
        views: list[LazyTensor] = []
        for output in plan.outputs:
            assert output is not None
            value = self.table.new_value(base.storage, output.layout, output.offset)
            value.generation = -1
            views.append(wrap(value))
        if plan.container is None:
            return views[0]
        return tuple(views) if issubclass(plan.container, tuple) else views

    @cached_property
    def replacements(self) -> Replacements:
        """Return the attributes of torch that are replaced while a cell is captured."""
        overriding = (torch.overrides, "has_torch_function", overrides_torch)
        kept = [*kept_on_host(self), *cuda_answers(self), *kept_former(self)]
        return Replacements([*kept, *REFUSED_MODULES, FORGETTING, overriding])

    @one_thread
    def begin_cell(self) -> None:
        """Begin a cell, before its first op."""
        self.begin_part()
        self._for_accelerators = any(one.kind != "cpu" for one in self.devices())
        with paused():
            self.exposures.look_again()

    def captured_cell(self, cell: str, file: str) -> AbstractContextManager[None]:
        """Record everything inside. What is pending at the end stays pending: the caller flushes."""
        from djinn_lab.capture.python.modes import captured_cell  # which knows recorders

        return captured_cell(self, cell, file)

    @contextmanager
    def set_aside(self, cause: str) -> Iterator[None]:
        """Record nothing inside, where another recorder captures; then resume. Raises what the recorded draws
        and writes to plain tensors, which are made first, run into."""
        with locked(self.lock):
            self.host.write_back(cause)
            self.segment.finish_draws(cause)
        self.aside = True
        try:
            yield
        finally:
            self.aside = False

    @contextmanager
    def paused_recording(self) -> Iterator[None]:
        """Run ops inside here, on fetched values where tensors are lazy, even while a cell is captured."""
        with locked(self.lock), _disable_current_modes(), torch._C.DisableTorchFunction():
            capturing, self.capturing = self.capturing, False
            try:
                yield
            finally:
                self.capturing = capturing


_recorders: WeakSet[PythonRecorder] = WeakSet()


@whole
def _set_data(tensor: Any, new: torch.Tensor) -> bool:
    if type(new) is LazyTensor:
        new._value.storage.recorder.make_plain_share(tensor, new)
        return True
    for recorder in list(_recorders):
        if recorder.capturing:
            with locked(recorder.lock):
                recorder.host.write_back("a tensor's data was replaced")  # it leaves its memory to others
    return False
