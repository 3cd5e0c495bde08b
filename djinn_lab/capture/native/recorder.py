"""Drives the native recorder: what it asks Python about, and the cell around it.

The path of one op is ``dispatch.h``: its arguments become a key, the key gives a plan, the node is
appended. Python is asked once for each key what the call returns
(:mod:`djinn_lab.capture.shapes.inference`), and for each op that may stay on the host, changes a layout, or
has an input that is not on the pool yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import RLock
from typing import Any

import torch
from torch._ops import OpOverload

from djinn_lab.capture.former_tensors import FormerTensors
from djinn_lab.capture.host.interrupts import locked
from djinn_lab.capture.host.ops import (
    has_generator,
    names_meta,
    run_on_host,
    run_on_known_integers,
    tensors_in,
)
from djinn_lab.capture.host.placement import Placement
from djinn_lab.capture.host.turns import one_thread
from djinn_lab.capture.lazy import present
from djinn_lab.capture.native import on_host
from djinn_lab.capture.native.cell import CellSurroundings
from djinn_lab.capture.native.extension import NativeCore, NativeStorage, NativeValue, native
from djinn_lab.capture.native.layout_changes import LayoutChanges
from djinn_lab.capture.native.memory import HostMemory, NativeCheckpoint, whole
from djinn_lab.capture.native.nodes import NativeNodes
from djinn_lab.capture.native.plain_tensors import PlainTensors
from djinn_lab.capture.native.questions import RECORD, introduce
from djinn_lab.capture.refusals import has_other_memory
from djinn_lab.capture.sending.backend import Backend, Cut
from djinn_lab.capture.sending.segment import Launched, Segment, paused
from djinn_lab.capture.shapes.inference import OpPlan, ShapeInference
from djinn_lab.capture.shapes.signature import (
    BROADCASTS_SELF,
    FITS_ROWS,
    LEAVES_CONJUGATE,
    MAKES_SPARSE,
    Signature,
    signature_of,
)
from djinn_lab.capture.shapes.stand_ins import on_meta
from djinn_lab.capture.torch_functions.hooks import ModulePaths
from djinn_lab.capture.torch_functions.optimizer_state import SteppedOptimizers
from djinn_lab.capture.torch_functions.packed_sequences import PACK, pack
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.capture.torch_functions.pool_memory import NoMemory, SessionsMemory
from djinn_lab.capture.torch_functions.replaced import forget_type
from djinn_lab.capture.values import Layout
from djinn_lab.errors import CaptureError

_aten = torch.ops.aten
_RNN_LAYER = _aten.mkldnn_rnn_layer.default
"""Computes differently under ``torch.no_grad()``; its last argument, else unused, says so to the worker."""


def _has_no_shape_rule(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the op gives a tensor that it writes or makes a layout that no shape rule predicts."""
    if signature.name == BROADCASTS_SELF:
        return bool(args[0].shape != args[1].shape[1:2] + args[2].shape[2:3])
    if signature.name == FITS_ROWS:
        rows = args[0].shape[args[10]] if signature.argument("per_row_fake_quant", args, kwargs) else 1
        return bool(args[3].numel() != rows)
    if signature.name == MAKES_SPARSE:
        return bool(signature.argument("sparse", args, kwargs))
    return signature.name == LEAVES_CONJUGATE and bool(args[0].is_complex())


@contextmanager
def _captured_by(core: NativeCore | None) -> Iterator[None]:
    """Let ``core`` record what this thread does; None: let nothing record it."""
    before = native.set_capturing(core)
    try:
        yield
    finally:
        native.set_capturing(before)


class NativeRecorder:
    """``lock``: of the thread that uses it now."""

    def __init__(self, backend: Backend, stream_nodes: int | None = None) -> None:
        introduce(NativeRecorder)
        self.lock = RLock()
        self.core: NativeCore = native.Recorder(weakref.ref(self))
        self.nodes = self.scopes = NativeNodes(self.core)
        self.segment = Segment(backend, self.nodes, stream_nodes)
        self.memory = HostMemory(self.core, self.segment)
        self.plain = PlainTensors(self.core, self.memory)
        self.placement = Placement(self.plain, self.segment, native.is_lazy)
        self.layouts = LayoutChanges(self)
        self.optimizers = SteppedOptimizers(self.why_lost)
        self.former = FormerTensors(self)
        self.segment.followers = self.placement.writes, self.former
        self.segment.on_not_computed = self.optimizers.undo
        self.owner: object = None
        self.may_display: Callable[[], bool] = lambda: True
        self.devices: Callable[[], Sequence[PoolDevice]] = lambda: ()
        self.device_memory: SessionsMemory = NoMemory()
        self.replayable = False
        self._inference = ShapeInference()
        self._paths = ModulePaths()
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()

    @cached_property
    def _surroundings(self) -> CellSurroundings:
        return CellSurroundings(self)

    @property
    def ops_recorded(self) -> int:
        return int(self.core.ops_recorded)

    @property
    def plans_made(self) -> int:
        return int(self.core.plans_made)

    @property
    def capturing(self) -> bool:
        """Return whether a cell is open."""
        return bool(self.core.capturing)

    @capturing.setter
    def capturing(self, on: bool) -> None:
        if on:
            self.core.for_accelerators = any(one.kind != "cpu" for one in self.devices())
            self.core.replayable = self.replayable
        self.core.capturing = on

    @property
    def captures_here(self) -> bool:
        """Return whether a cell is captured in this very thread, and no other session's cell inside it."""
        return bool(self.core.captures_here)

    @property
    def host_only(self) -> bool:
        """Keep on the host whatever can stay there (set around data loaders)."""
        return bool(self.core.host_only)

    @host_only.setter
    def host_only(self, on: bool) -> None:
        self.core.host_only = on

    # ---------------------------------------------------------------- asked by the native side

    def plan(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]
    ) -> OpPlan:
        return self._inference.plan(signature_of(func), args, kwargs, values)

    @one_thread
    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle an op that may stay on the host, change a layout, need no node at all, or read what the pool
        has not."""
        if func in on_host.QUESTIONS:
            return on_host.QUESTIONS[func](*args)
        if func is PACK:
            with native.Recording():
                return pack(self, *args, **kwargs)
        signature = signature_of(func)
        tensors = tensors_in(args, kwargs)
        if signature.sets_storage or signature.mutates_layout:
            return self.layouts.change(signature, args, kwargs)
        if self.placement.is_host(signature, args, kwargs, tensors, self.host_only):
            return run_on_host(func, args, kwargs)
        if names_meta(args, kwargs):
            return on_meta(signature, args, kwargs)
        if (
            not signature.on_pool
            or _has_no_shape_rule(signature, args, kwargs)
            or has_generator(signature, args, kwargs)
            or any(map(has_other_memory, tensors))
            or self._writes_shown(signature, args, kwargs, tensors)
        ):
            return self._run_here(func, args, kwargs)
        if tensors and all(native.is_lazy(t) and native.storage_of(t).host_is_current() for t in tensors):
            known = run_on_known_integers(
                signature, tensors, lambda: on_host.run(self.memory, func, args, kwargs)
            )
            if known is not None:
                return known
        self.bring_all(signature, args, kwargs)
        if func is _RNN_LAYER and args[-1] is not torch.is_grad_enabled():
            return native.record(func, (*args[:-1], torch.is_grad_enabled()), kwargs)
        return RECORD

    def bring_all(self, signature: Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Get every input ready for the next node."""
        tensors = tensors_in(args, kwargs)
        written = {id(tensor) for tensor in signature.written_tensors(args, kwargs)}
        for _ in range(len(tensors) + 1):  # bringing one can send what captured ops wrote to another home
            for tensor in tensors:
                self.bring(tensor, id(tensor) in written)
            if all(native.is_lazy(tensor) or self.core.has_twin(tensor) for tensor in tensors):
                return
        raise CaptureError(
            f"{signature.name} reads and writes memory that its arguments share in a way that capture"
            " cannot follow.",
            "Give it copies, made with .clone().",
        )

    def bring(self, tensor: torch.Tensor, written: bool) -> None:
        """Get an input ready for the next node."""
        if not native.is_lazy(tensor):
            if written:
                self.plain.write(tensor)
            else:
                self.plain.read(tensor)
        if native.is_lazy(tensor):
            if present(native.owner_of(tensor)()) is not self:
                raise CaptureError(
                    "this tensor belongs to another pool session.",
                    "Use that session (a cell opens it again) or bring the tensor home: pull(model), .cpu().",
                )
            storage = native.storage_of(tensor)
            if not storage.usable:
                self.memory.ready(storage)

    def _writes_shown(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> bool:
        """Return whether the op would change memory that a numpy array shows; then it must do so at once, and
        here."""
        written = list(signature.written_tensors(args, kwargs))
        for tensor in written:
            if native.is_lazy(tensor):
                storage = native.storage_of(tensor)
                if storage.exposure is not None:
                    self.memory.exposures.refresh(storage)
                    if storage.exposure is not None:
                        return True
            elif self.plain.must_write(tensor):
                return True
        return self.plain.share_memory(written, tensors)

    def _run_here(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op of a captured cell on the host, on what every tensor is by now."""
        self.plain.write_back("a tensor written in this cell was read on the host")
        signature = signature_of(func)
        if signature.random:
            self.segment.finish_draws("random numbers were drawn on the host")
        try:
            return on_host.run(self.memory, func, args, kwargs)
        finally:
            for tensor in signature.written_tensors(args, kwargs):
                if not native.is_lazy(tensor):
                    self.plain.forget(tensor)

    @one_thread
    def outside(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op on lazy tensors outside a captured cell. Views stay lazy (they must share memory); the
        rest runs here."""
        if func in on_host.QUESTIONS:
            return on_host.QUESTIONS[func](*args)
        signature = signature_of(func)
        if signature.sets_storage or (signature.mutates_layout and native.is_lazy(args[0])):
            return self.layouts.change(signature, args, kwargs)
        if not signature.is_view or signature.mutates_layout or not native.is_lazy(args[0]):
            return self._run_here(func, args, kwargs)
        return self.view(signature, args, kwargs)

    def view(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a view op: tensors that share the memory of its first argument. Nothing is
        recorded."""
        base = native.value_of(args[0])
        values = [native.value_of(tensor) for tensor in tensors_in(args, kwargs)]
        plan = self.plan(signature.func, args, kwargs, values)
        views = []
        for output in plan.outputs:
            assert output is not None
            views.append(native.wrap(native.Value(base.storage, output.layout, output.offset), args[0]))
        if plan.container is None:
            return views[0]
        return tuple(views) if issubclass(plan.container, tuple) else views

    def allow_cut(self, name: str) -> None:
        """Check that the cell may be cut here: an op whose result sizes depend on data is about to be
        recorded and run."""
        self.segment.before_cut(Cut(name, self.nodes.line()))

    @one_thread
    def run_dynamic(self, name: str) -> list[Layout]:
        """Run what is pending, and say which layouts the last op's results have."""
        metas = self.segment.run(Cut(name, self.nodes.line()))[1]
        assert None not in metas
        return [Layout.of_meta(meta) for meta in metas if meta is not None]

    @one_thread
    def draw(self) -> None:
        """Note that the next op draws random numbers."""
        self.segment.draw()
        self.core.draws_open = True

    @one_thread
    def stream(self) -> None:
        self.segment.stream()

    @one_thread
    def settle_draws(self, cause: str) -> None:
        """Make the recorded draws, since the default generator is about to be read or set."""
        self.segment.finish_draws(cause)

    @one_thread
    def run_under_old_settings(self) -> None:
        """Run what is pending, since the next op is recorded under other numeric settings."""
        self.segment.flush(Cut("a numeric setting was changed", self.nodes.line()))

    @one_thread
    def materialize(self, storage: NativeStorage) -> None:
        """Fetch the memory itself, which something is about to read or write."""
        self.memory.show(storage)

    def enter_root(self, module: torch.nn.Module) -> object:
        """Return the paths of all modules below one that the cell calls."""
        names = self._names.get(module)
        if names is None:
            names = self._names[module] = self.core.module_names(self._paths.of_root(module))
        return names

    @one_thread
    def enter_module(self, module: torch.nn.Module) -> None:
        """Make the parameters and buffers of a module lazy, which runs for the first time in this cell."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return  # vmap and grad wrap tensors of their own
        with paused():
            for parameter in module._parameters.values():
                if parameter is not None and not native.is_lazy(parameter):
                    self.plain.make_lazy(parameter, "weight")
            for buffer in module._buffers.values():
                if buffer is not None and not native.is_lazy(buffer):
                    self.plain.make_lazy(buffer, "weight")

    # ---------------------------------------------------------------- asked by others

    @one_thread
    def fetch_tensors(self, tensors: Sequence[torch.Tensor], cause: str) -> list[torch.Tensor]:
        """Return plain tensors over the host's copy of lazy ones, fetched where it is not current. Not to be
        written to."""
        with paused():
            return self.memory.fetch([native.value_of(tensor) for tensor in tensors], cause)

    @one_thread
    def fetch_whole(self, tensors: Sequence[torch.Tensor], cause: str) -> None:
        """Make the host's copy of the memory behind lazy tensors current, but for what is lost."""
        storages = [native.storage_of(tensor) for tensor in tensors]
        self.memory.fetch_whole([s for s in storages if s.lost is None and s.base_id is not None], cause)

    @one_thread
    def only_on_pool(self) -> list[torch.Tensor]:
        """Return a tensor for each memory that tensors of this process hold, and the host has no copy of."""
        held = [s for s in self.core.storages() if s.lost is None and s.base_id is not None]
        return [native.wrap(whole(storage)) for storage in held if not storage.host_is_current()]

    def host_bytes(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        """Return the host's copy of the memory behind a lazy tensor, which must be current."""
        memory: torch.UntypedStorage = native.storage_of(tensor).host
        return memory

    @one_thread
    def window(self, tensor: torch.Tensor, cause: str) -> torch.Tensor:
        """Return a plain tensor that shares memory with a lazy one, as long as it lives."""
        return self.memory.window(native.value_of(tensor), cause)

    @one_thread
    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an independent lazy copy; nothing is fetched."""
        with paused():
            self.bring(tensor, False)
        if not self.capturing:
            self.core.look_at = max(self.core.look_at, self.core.pending + 2)
        copied: torch.Tensor = native.record(_aten.clone.default, (tensor,), {})
        return copied

    @one_thread
    def adopt_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a lazy tensor with a copy of a plain tensor's present contents."""
        return self.memory.adopt_copy(tensor)

    @one_thread
    def settle_plain(self, tensor: torch.Tensor) -> None:
        """Bring a plain tensor up to what captured ops wrote to it, if they did."""
        if not native.is_lazy(tensor):
            self.plain.settle(tensor)

    @one_thread
    def put_on_pool(self, tensor: torch.Tensor) -> bool:
        """Turn a plain tensor into a lazy one in place, where that can be."""
        with paused():
            self.plain.settle(tensor)
            return self.plain.make_lazy(tensor, "weight")

    @one_thread
    def share(self, plain: torch.Tensor) -> torch.Tensor:
        """Return a lazy tensor that shares memory with a plain one."""
        self.plain.write_back("a tensor's memory was shared with a lazy one")
        self.plain.forget(plain)
        return self.memory.share(plain)

    @one_thread
    def share_between_processes(self, tensor: torch.Tensor) -> None:
        """Move the host's copy of the memory behind a lazy tensor to memory that processes share."""
        self.memory.share_between_processes(native.storage_of(tensor))

    def value_of_lazy(self, tensor: torch.Tensor) -> object:
        return native.value_of(tensor)

    def value_to_keep(self, tensor: torch.Tensor) -> object:
        """Return the value of a lazy tensor, which is about to be given another. Where no other tensor has
        its memory and the host has the bytes, the pool need not keep them."""
        alone = native.storage_users(tensor) == 1
        value = native.value_of(tensor)
        if alone and value.storage.host_is_current() and value.storage.exposure is None:
            value.storage.leave_to_host()
        return value

    def identity_of(self, tensor: torch.Tensor) -> object:
        """Return what tells the memory and the layout of a lazy tensor from others, and holds neither."""
        return native.value_of(tensor).key()

    def begin_part(self) -> None:
        """Note that what is recorded from now on is another part of the cell, or another cell."""
        self.core.begin_part()

    def made_in_part(self, tensor: torch.Tensor) -> bool:
        """Return whether an op of this part of the cell made the memory of a tensor."""
        return native.is_lazy(tensor) and self.core.made_in_part(native.storage_of(tensor))

    def why_lost(self, tensor: torch.Tensor) -> str | None:
        """Return why a tensor has no value, None where it has one."""
        return native.storage_of(tensor).lost if native.is_lazy(tensor) else None

    def take_histories(self, puts_back: bool) -> None:
        """Forget what tensors that the cell wrote were to autograd. ``puts_back``: let those that nothing has
        written since be that again."""
        self.core.take_histories(puts_back)

    def renew_views(self, views: Sequence[torch.Tensor]) -> None:
        """Let views be to autograd a part of what their bases are, some of which were put back."""
        self.core.renew_views(list(views))

    def remember_history(self, tensor: torch.Tensor) -> None:
        """Note that something else than an op is about to change what a tensor is to autograd."""
        self.core.remember_history(tensor)

    @property
    def keeps_histories(self) -> bool:
        """Keep what tensors were to autograd also where an op that wrote them has run."""
        return bool(self.core.keeps_histories)

    @keeps_histories.setter
    def keeps_histories(self, on: bool) -> None:
        self.core.keeps_histories = on

    def leave_histories(self) -> None:
        """Note that the cell has written what it writes."""
        self.core.leave_histories()

    def restore_value(self, tensor: torch.Tensor, value: NativeValue) -> None:
        """Make a tensor name a value again."""
        if native.is_lazy(tensor) and native.value_of(tensor) == value:
            return
        if tensor.dtype is not value.layout.dtype:
            forget_type(tensor, value.layout.dtype)
        native.look_at(tensor, value)

    @one_thread
    def drop_dirty(self) -> list[int]:
        """Forget what captured ops wrote to plain tensors; return the ids."""
        ids: list[int] = self.core.ids(self.plain.drop_dirty())
        return ids

    def pool_id(self, tensor: torch.Tensor) -> int:
        """Return the number by which the pool knows the memory of a lazy tensor."""
        return int(native.storage_of(tensor).base_id)

    def checkpoint(self) -> NativeCheckpoint:
        return NativeCheckpoint(self.core, self.segment.backend, self.plain.end_cell)

    def replace(self, lazy: torch.Tensor, plain: torch.Tensor) -> None:
        """Make the object ``lazy`` be what ``plain`` is."""
        with paused():
            if lazy.dtype is not plain.dtype:
                forget_type(lazy, plain.dtype)
            native.become(lazy, plain)

    @one_thread
    def finish(self, cause: str) -> None:
        """Run what is pending and bring plain tensors that were written up to date."""
        self.plain.write_back(cause)
        self.segment.flush(Cut(cause, 0))

    @one_thread
    def launch(self, cause: str, launched: Launched) -> bool:
        """Send what is pending without waiting, and return whether anything is under way; only plain tensors
        that were written are waited for."""
        self.plain.write_back(cause)
        return self.segment.launch(Cut(cause, 0), launched)

    @contextmanager
    def captured_cell(self, cell: str, file: str) -> Iterator[None]:
        """Record everything inside. What is pending at the end stays pending: the caller flushes."""
        if self.capturing:
            yield
            return
        with locked(self.lock):
            self.core.enter_cell(cell, file)
            self.host_only = False  # an exception may have left a data loader where Python cannot say so
            if self.memory.exposures.present:
                with paused():
                    self.memory.exposures.look_again()
            self.capturing = True
        try:
            with self._surroundings.inside(), _captured_by(self.core):
                yield
        finally:
            with locked(self.lock):
                self.capturing = False
                if not self.plain.dirty:
                    self.plain.end_cell()

    @contextmanager
    def set_aside(self, cause: str) -> Iterator[None]:
        """Record nothing inside, where another recorder captures; then resume. Raises what the recorded draws
        and writes to plain tensors, which are made first, run into."""
        with locked(self.lock):
            self.plain.write_back(cause)
            self.segment.finish_draws(cause)
        with _captured_by(None):
            yield

    @contextmanager
    def paused_recording(self) -> Iterator[None]:
        """Run ops inside here, on fetched values where tensors are lazy, even while a cell is captured."""
        with locked(self.lock):
            capturing, self.capturing = self.capturing, False
            try:
                with _captured_by(None), torch._C.DisableTorchFunction():
                    yield
            finally:
                self.capturing = capturing
