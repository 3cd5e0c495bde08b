"""Records torch ops as graph nodes and gets values when somebody needs them. One per session.

The path of one op through :meth:`Recorder.dispatch`:

1. what belongs on the host stays there (:mod:`djinn_lab.capture.placement`); 2. the arguments become a
key, input values and scalars; the key gives a cached :class:`~djinn_lab.capture.inference.Plan`; 3. the
outputs are wrapped and a node is appended. Nothing runs.

:meth:`Recorder.flush` sends what is still reachable and learns what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.arguments import Arguments
from djinn_lab.capture.assembly import PendingNode, PendingSource, assemble
from djinn_lab.capture.backend import Backend, Cut
from djinn_lab.capture.host_tensors import HostTensors, contents_of_storage, is_inline
from djinn_lab.capture.inference import Output, Plan, ShapeInference
from djinn_lab.capture.ledger import Ledger
from djinn_lab.capture.local import run_locally
from djinn_lab.capture.placement import belongs_on_host, has_generator
from djinn_lab.capture.random_stream import RandomStream
from djinn_lab.capture.scope import ScopeTracker
from djinn_lab.capture.signature import Signature, signature_of
from djinn_lab.capture.tensor import LazyTensor, become, wrap
from djinn_lab.capture.values import Layout, Storage, Value
from djinn_lab.errors import CaptureError, ValueLost

_SAME_VALUE = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
_RESOLVED = {
    torch.ops.aten._conj.default: torch.ops.aten._conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
"""Views that differ by a bit a wrapper cannot carry; the pool gets the copy instead."""
_AS_STRIDED = torch.ops.aten.as_strided.default
_CLONE = torch.ops.aten.clone.default
WHOLE_STORAGE_BYTES_MAX = 2**20
"""A view of a storage up to this size is fetched with the whole storage, which then serves its other
views."""


class Recorder:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._inference = ShapeInference()
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._nodes: list[PendingNode] = []
        self.dead: list[int] = []
        self.ledger = Ledger(self.dead)
        self.scopes = ScopeTracker()
        self.random = RandomStream()
        self.host = HostTensors(self)
        self.capturing = False
        self.host_only = False
        self.ops_recorded = 0
        self.plans_made = 0
        self.owner: object = None
        self.may_display: Callable[[], bool] = lambda: True

    # ---------------------------------------------------------------- recording

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One op inside a captured cell."""
        if func in _SAME_VALUE and type(args[0]) is LazyTensor:
            return wrap(args[0]._value)
        func = _RESOLVED.get(func, func)
        signature = signature_of(func)
        if belongs_on_host(self, signature, args, kwargs):
            return func(*args, **kwargs)
        if signature.as_view is not None and type(args[0]) is LazyTensor:
            become(args[0], self._record(signature_of(signature.as_view), args, kwargs))
            return args[0]
        if (
            not signature.is_aten
            or signature.mutates_layout
            or (signature.generator and has_generator(signature, args, kwargs))
        ):
            return run_locally(self, func, args, kwargs)
        return self._record(signature, args, kwargs)

    def _record(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Arguments(self.value_of, signature, args, kwargs)
        plan = self._plan(signature, call, args, kwargs)
        if plan.dynamic:
            return self._record_dynamic(signature, plan, call, args, kwargs)
        if signature.random:
            self._draw()
        self.ops_recorded += 1
        if plan.simple:
            value = self._fresh(plan.layouts[0])
            self._push(plan, call, (value.id,), (value.storage.id,), (), signature.random)
            return wrap(value)
        return self._record_aliasing(signature, plan, call, args, kwargs)

    def _plan(
        self, signature: Signature, call: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan:
        plan = self._plans.get(call.key)
        if plan is None:
            plan = self._inference.plan(signature, args, kwargs, call.values)
            self._plans[call.key] = plan
            self.plans_made += 1
        return plan

    def _record_aliasing(
        self,
        signature: Signature,
        plan: Plan,
        call: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Ops with several returns, views or writes."""
        written = self._mark_writes(signature, args, kwargs)
        returned: list[Any] = list(plan.literals)
        values: list[Value | None] = []
        for index, output in enumerate(plan.outputs):
            if output is None:
                values.append(None)
                continue
            returned[index], value = self._output(signature, output, args, kwargs)
            values.append(value)
        ids = tuple(None if value is None else value.id for value in values)
        storages = tuple(None if value is None else value.storage.id for value in values)
        self._push(plan, call, ids, storages, written, signature.random)
        if plan.container is None:
            return returned[0]
        return tuple(returned) if issubclass(plan.container, tuple) else returned

    def _push(
        self,
        plan: Plan,
        call: Arguments,
        outputs: tuple[int | None, ...],
        storages: tuple[int | None, ...],
        written: tuple[int, ...],
        random: bool,
    ) -> None:
        self._nodes.append(
            PendingNode(
                plan,
                tuple([value.id for value in call.values]),
                outputs,
                storages,
                tuple([value.storage.id for value in call.values]),
                written,
                self.scopes.current(),
                tuple(call.scalars),
                random,
            )
        )

    def _fresh(self, layout: Layout | None) -> Value:
        assert layout is not None
        ledger = self.ledger
        return ledger.new_value(Storage(self, ledger.new_id(), layout.span_bytes, "activation"), layout, 0)

    def _output(
        self, signature: Signature, output: Output, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, Value]:
        if output.source is None:
            value = self._fresh(output.layout)
            return wrap(value), value
        source = signature.argument(output.source, args, kwargs)
        if isinstance(source, (list, tuple)):
            source = source[0]
        base = self.value_of(source)
        if output.written:
            return source, base
        value = self.ledger.new_value(base.storage, output.layout, output.offset)
        return wrap(value), value

    def _mark_writes(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, ...]:
        storages: list[int] = []
        for name in signature.written:
            argument = signature.argument(name, args, kwargs)
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if tensor is None:
                    continue
                value = self.value_of(tensor)
                value.storage.written_on_pool()
                storages.append(value.storage.id)
                if type(tensor) is not LazyTensor:
                    self.host.mark_written(tensor, value)
        return tuple(storages)

    def _record_dynamic(
        self,
        signature: Signature,
        plan: Plan,
        call: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """An op whose result sizes depend on data: run up to it now and learn them."""
        if not signature.returns_tensors or signature.written or signature.is_view:
            return run_locally(self, signature.func, args, kwargs)
        if signature.random:
            self._draw()
        self.ops_recorded += 1
        unknown = Layout.of(torch.uint8, (0,), (1,))
        values = [self._fresh(unknown) for _ in signature.return_aliases]
        ids = tuple(value.id for value in values)
        self._push(plan, call, ids, tuple(value.storage.id for value in values), (), signature.random)
        metas = self._run(Cut(signature.name, self.scopes.line()), ())[1]
        returned: list[torch.Tensor] = []
        for value, meta in zip(values, metas, strict=True):
            assert meta is not None
            value.layout = Layout.of_meta(meta)
            value.storage.nbytes = value.layout.span_bytes
            self.ledger.held[value.id] = PendingSource(
                value.storage.id, value.layout, "activation", None, None
            )
            returned.append(wrap(value))
        return returned[0] if len(returned) == 1 else tuple(returned)

    def _draw(self) -> None:
        if self.random.reseeded():
            self.flush(Cut("a random seed was set", self.scopes.line()))
        self.random.draw()

    # ---------------------------------------------------------------- values

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value of any tensor, ready to be used by the next node."""
        if type(tensor) is not LazyTensor:
            return self.host.value_of(tensor)
        value = tensor._value
        storage = value.storage
        if storage.recorder is not self:
            raise CaptureError(
                "this tensor belongs to another pool session.",
                "Fetch it with .cpu() before using it here.",
            )
        if value.generation != storage.generation or self.ledger.lost:
            self._put_on_pool(value)
        return value

    def _put_on_pool(self, value: Value) -> None:
        """Derive ``value`` again from the host's bytes, when the pool has no current copy of its memory."""
        reason = self.ledger.lost.get(value.id)
        if reason is not None:
            raise ValueLost(reason, "Run the cell that made it again.")
        storage = value.storage
        if value.generation == storage.generation:
            return
        self.ledger.rename(value)
        if storage.base_id is None:
            self._send_base(value)
        if value.id != storage.base_id:
            assert storage.base_layout is not None
            assert storage.base_id is not None
            base = Value(storage, storage.base_id, storage.base_layout, 0, storage.generation)
            base.owned = False
            self._push_view(base, value)
        value.generation = storage.generation

    def _send_base(self, value: Value) -> None:
        storage = value.storage
        if not storage.host_is_current():
            raise ValueLost(
                "the values of this tensor were on a device whose process died.",
                "Run the cell that made it again.",
            )
        assert storage.host is not None
        storage.id = self.ledger.new_id()
        base = value
        if not value.covers_storage():
            dtype = value.layout.dtype
            layout = Layout.of(dtype, (storage.nbytes // dtype.itemsize,), (1,))
            base = self.ledger.new_value(storage, layout, 0)
        self.ledger.give_to_storage(base)
        self.add_source(base, contents_of_storage(storage.host))

    def _push_view(self, base: Value, view: Value) -> None:
        """Record ``view`` as the strided view of ``base``'s storage that it is."""
        signature = signature_of(_AS_STRIDED)
        args = (wrap(base), list(view.layout.shape), list(view.layout.stride), view.offset)
        call = Arguments(lambda tensor: base, signature, args, {})
        plan = self._plans.get(call.key)
        if plan is None:
            plan = self._inference.plan(signature, args, {}, [base])
            self._plans[call.key] = plan
        self._push(plan, call, (view.id,), (view.storage.id,), (), False)

    def add_source(self, value: Value, data: memoryview) -> None:
        """``value`` begins with these bytes."""
        inline = bytes(data) if is_inline(data) else None
        blob = self._backend.stage(data) if inline is None else None
        storage = value.storage
        self.ledger.held[value.id] = PendingSource(storage.id, value.layout, storage.residency, blob, inline)

    def clone(self, tensor: LazyTensor) -> torch.Tensor:
        """An independent lazy copy; nothing is fetched."""
        base = self.value_of(tensor)
        if base.generation != base.storage.generation:
            return self.adopt_copy(base.host_view())
        copied = self._record(signature_of(_CLONE), (tensor,), {})
        assert isinstance(copied, torch.Tensor)
        return copied

    def adopt_copy(self, tensor: torch.Tensor) -> LazyTensor:
        """A lazy tensor with a copy of a tensor's present contents (what ``.to("cuda")`` gives)."""
        with self.paused(), torch.no_grad():
            copied = tensor.detach().clone()
        layout = Layout.of_tensor(copied)
        storage = Storage(self, self.ledger.new_id(), copied.untyped_storage().nbytes(), "input")
        storage.host, storage.host_version = copied.untyped_storage(), 0
        value = self.ledger.new_value(storage, layout, int(copied.storage_offset()))
        value.generation = -1
        return wrap(value)

    # ---------------------------------------------------------------- running

    def run_outside(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One op on lazy tensors outside a captured cell. Views stay lazy (they must share memory); the
        rest runs here."""
        if func in _SAME_VALUE:
            return wrap(args[0]._value)
        func = _RESOLVED.get(func, func)
        signature = signature_of(func)
        if signature.as_view is not None and type(args[0]) is LazyTensor:
            become(args[0], self.run_outside(signature.as_view, args, kwargs))
            return args[0]
        if not signature.is_view or signature.mutates_layout or type(args[0]) is not LazyTensor:
            return run_locally(self, func, args, kwargs)
        base = args[0]._value
        if base.generation == base.storage.generation:
            return self._record(signature, args, kwargs)
        plan = self._inference.plan(signature, args, kwargs, [base])
        views: list[LazyTensor] = []
        for output in plan.outputs:
            assert output is not None
            value = self.ledger.new_value(base.storage, output.layout, output.offset)
            value.generation = -1
            views.append(wrap(value))
        if plan.container is None:
            return views[0]
        return tuple(views) if issubclass(plan.container, tuple) else views

    def fetch(self, values: Sequence[Value], cause: str) -> list[torch.Tensor]:
        """Plain tensors over the host's copy of each value, brought over where it is not current."""
        with self.paused():
            return self._fetch(values, cause)

    def _fetch(self, values: Sequence[Value], cause: str) -> list[torch.Tensor]:
        wanted = {value.id: value for value in values if not value.storage.host_is_current()}
        direct: dict[int, torch.Tensor] = {}
        if wanted:
            targets = [self._fetch_target(value, False) for value in wanted.values()]
            fetched = self.flush(Cut(cause, self.scopes.line()), [target.id for target in targets])
            for value, target, tensor in zip(wanted.values(), targets, fetched, strict=True):
                if not self._cache(target, tensor):
                    direct[value.id] = tensor
        return [direct[value.id] if value.id in direct else value.host_view() for value in values]

    def fetch_whole(self, values: Sequence[Value], cause: str) -> None:
        """Make the host's copy of the storages behind ``values`` current, all of them."""
        with self.paused():
            self._fetch_whole(values, cause)

    def _fetch_whole(self, values: Sequence[Value], cause: str) -> None:
        wanted = {value.storage: value for value in values if not value.storage.host_is_current()}
        if not wanted:
            return
        targets = [self._fetch_target(value, True) for value in wanted.values()]
        fetched = self.flush(Cut(cause, self.scopes.line()), [target.id for target in targets])
        for target, tensor in zip(targets, fetched, strict=True):
            cached = self._cache(target, tensor)
            assert cached

    def _fetch_target(self, value: Value, whole: bool) -> Value:
        """``value`` itself, or all of its storage where that is small or mostly wanted anyway."""
        self._put_on_pool(value)
        storage = value.storage
        small = storage.nbytes <= max(WHOLE_STORAGE_BYTES_MAX, 4 * value.layout.nbytes)
        if value.covers_storage() or not (whole or small) or storage.nbytes % value.layout.dtype.itemsize:
            return value
        layout = Layout.of(value.layout.dtype, (storage.nbytes // value.layout.dtype.itemsize,), (1,))
        everything = self.ledger.new_value(storage, layout, 0)
        self._push_view(value, everything)
        return everything

    def _cache(self, value: Value, tensor: torch.Tensor) -> bool:
        """Keep fetched bytes as the storage's host copy, when they are all of it."""
        if not value.covers_storage():
            return False
        storage = value.storage
        if tensor.stride() != value.layout.stride:
            with torch.no_grad():
                restrided = torch.empty_strided(
                    value.layout.shape, value.layout.stride, dtype=value.layout.dtype
                )
                tensor = restrided.copy_(tensor)
        storage.host, storage.host_version = tensor.untyped_storage(), storage.version
        return True

    def write_back(self, cause: str) -> None:
        """Copy what captured ops wrote to plain tensors into their own memory."""
        dirty, self.host.dirty = list(self.host.dirty.values()), {}
        if not dirty:
            return
        self.host.end_cell()
        fetched = self.fetch([lazy._value for _, lazy in dirty], cause)
        with self.paused(), torch.no_grad():
            for (tensor, _), new in zip(dirty, fetched, strict=True):
                tensor.detach().copy_(new)

    def flush(self, cut: Cut, fetch: Sequence[int] = ()) -> list[torch.Tensor]:
        """Send what is pending and reachable, wait, and return the fetched tensors. Raises what went
        wrong."""
        return self._run(cut, fetch)[0]

    def _run(self, cut: Cut, fetch: Sequence[int]) -> tuple[list[torch.Tensor], Sequence[Any]]:
        with self.paused():
            return self._run_paused(cut, fetch)

    def _run_paused(self, cut: Cut, fetch: Sequence[int]) -> tuple[list[torch.Tensor], Sequence[Any]]:
        ledger = self.ledger
        dead, release = ledger.take_dead()
        writes = any(node.written for node in self._nodes)
        assembled = assemble(
            self._nodes,
            ledger.held,
            self.scopes.scopes,
            ledger.live.keys(),
            ledger.live_storages() if writes else (),
            fetch,
            release,
            self.random.start_state(),
        )
        nodes = [self._nodes[position] for position in assembled.positions]
        self._nodes = []
        self.scopes.clear()
        if not (nodes or fetch):
            if release:
                self._backend.release(release)
            ledger.settle((), (), dead)
            return [], ()
        result = self._backend.run(assembled.program, cut)
        self.random.finish(result.rng_state)
        if result.pool_lost:
            reason = "this value was on a device or pool that went away"
            ledger.lose(nodes, reason)
            ledger.lose_pool()
        else:
            ledger.settle(assembled.sent, nodes[: result.executed], dead)
            first_line = f"{result.error or 'its cell was stopped'}".split("\n", 1)[0]
            ledger.lose(nodes[result.executed :], f"this value was not computed: {first_line}")
        if result.error is not None:
            raise result.error
        return list(result.fetched), result.dynamic_metas

    @contextmanager
    def paused_recording(self) -> Iterator[None]:
        """Ops inside run here, on fetched values where tensors are lazy, even while a cell is captured."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Torch calls inside are ordinary ones, even while a cell is captured."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            yield
