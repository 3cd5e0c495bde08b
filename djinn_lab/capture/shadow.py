"""Every op of a captured cell computed a second time, here and at once, on shadows of its tensors.

A :class:`Shadow` is a dispatch mode above the recording one: each op is recorded as always, and then run by
eager torch on plain shadow tensors. Shadows alias each other as the user's tensors do, since views and
in-place ops run on them too; what existed before the cell gets its shadow from the host's or the pool's
bytes when it is first used. Neither the user's tensors nor the random stream are touched, and Python code
runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves, tree_map

from djinn_lab.capture.host.random_stream import DEFAULT
from djinn_lab.capture.lazy import is_lazy, memory_of
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shapes.signature import Signature, signature_of
from djinn_lab.capture.torch_functions.hooks import UnwrappedDispatchMode

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

CAUSE = "verify"
_RNN_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
"""Computes differently under ``torch.no_grad()``, by its processor's instructions."""
_UNINITIALISED = ("aten.empty", "aten.new_empty")


class Shadow(UnwrappedDispatchMode):
    """``differs(what, ours, theirs)`` is called with a Python number that came out differently. ``failure``:
    what eager torch raised where recording did not; nothing is shadowed from there on."""

    def __init__(self, recorder: Recorder, differs: Callable[[str, object, object], None]) -> None:
        super().__init__()
        self._recorder = recorder
        self._differs = differs
        self._memories: WeakKeyDictionary[Any, torch.UntypedStorage] = WeakKeyDictionary()
        self._plain: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._changed: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._stream = DEFAULT.get_state()
        self._host_stream = self._stream
        self._drawn = False
        """Whether the host's generator did not stand behind all draws after the last op."""
        self.failure: tuple[int, Exception] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        if self.failure is not None:
            return func(*args, **kwargs)
        signature, grad = signature_of(func), torch.is_grad_enabled()
        with paused():
            self._follow_stream()
            call = self._prepare(signature, args, kwargs)
        try:
            returned = func(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - re-raised as it is
            raise error.with_traceback(None) from None
        with paused(), torch.no_grad():
            if call is not None or any(is_lazy(leaf) for leaf in tree_leaves(returned)):
                self._follow(signature, call or self._inputs(signature, args, kwargs), returned, grad)
            self._host_stream = DEFAULT.get_state()
            self._drawn = self._recorder.segment.random.drawn
        return returned

    # ---------------------------------------------------------------- what the user sees

    def was_changed(self, tensor: torch.Tensor) -> bool:
        """Return whether the cell made this tensor, or wrote to it."""
        if is_lazy(tensor):
            return memory_of(tensor) in self._changed
        return tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() in self._plain

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what eager torch has in place of ``tensor``."""
        if is_lazy(tensor):
            return self._of_lazy(tensor)
        entry = self._plain.get(tensor.untyped_storage().data_ptr())
        if entry is None:
            return tensor
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(entry[1], tensor.storage_offset(), tensor.size(), tensor.stride())

    # ---------------------------------------------------------------- one op

    def _prepare(
        self, signature: Signature, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[Any, Any] | None:
        """The shadow call, taken before the op runs (what it writes must be shadowed as it was); None when
        it is only about plain tensors that the pool has nothing to do with."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        lazy = any(is_lazy(tensor) for tensor in tensors)
        shadowed = any(not is_lazy(tensor) and self.was_changed(tensor) for tensor in tensors if self._plain)
        if signature.written and not self._recorder.host_only:
            for tensor in self._written(signature, args, kwargs):
                if not is_lazy(tensor) and (lazy or tensor.dim()):
                    self._shadow_plain(tensor)
                    shadowed = True
        if not (lazy or shadowed or signature.random):
            return None
        return self._inputs(signature, args, kwargs)

    def _inputs(self, signature: Signature, args: Any, kwargs: Any) -> tuple[Any, Any]:
        written = {id(tensor) for tensor in self._written(signature, args, kwargs)}

        def convert(leaf: object) -> object:
            if isinstance(leaf, torch.Generator):
                return leaf if _is_default(leaf) else leaf.clone_state()
            if isinstance(leaf, torch.Tensor):
                shadow = self.of(leaf)
                if shadow is leaf and id(leaf) in written:
                    return leaf.clone()  # the host writes this one itself, once
                return shadow.detach() if signature.mutates_layout else shadow
            return leaf

        return tree_map(convert, args), tree_map(convert, kwargs)

    def _follow(self, signature: Signature, call: tuple[Any, Any], returned: object, grad: bool) -> None:
        host = DEFAULT.get_state() if signature.random else None
        try:
            if host is not None:
                DEFAULT.set_state(self._stream)
            with torch.set_grad_enabled(grad and signature.func is _RNN_LAYER):
                expected = signature.func(*call[0], **call[1])
        except Exception as error:  # noqa: BLE001 - eager torch's own, reported with the line
            self.failure = (self._recorder.scopes.line(), error)
            return
        finally:
            if host is not None:
                self._stream = DEFAULT.get_state()
                DEFAULT.set_state(host)
        if signature.name.startswith(_UNINITIALISED):
            expected.zero_()  # as the worker does
        for ours, theirs in zip(tree_leaves(returned), tree_leaves(expected), strict=True):
            self._note(signature, ours, theirs)

    def _note(self, signature: Signature, ours: Any, theirs: Any) -> None:
        if is_lazy(ours):
            if theirs is None:
                return  # some CPU kernels return no workspace where their shape rule says one
            memory = memory_of(ours)
            if memory not in self._memories:
                self._memories[memory] = _laid_out_like(ours, theirs).untyped_storage()
            if signature.written or not signature.is_view:
                self._changed[memory] = True
        elif isinstance(theirs, (bool, int, float, complex)) and ours != theirs and ours == ours:
            self._differs(signature.name, ours, theirs)

    def _written(self, signature: Signature, args: Any, kwargs: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for name in signature.written_names(args, kwargs):
            argument = signature.argument(name, args, kwargs)
            found.extend(argument if isinstance(argument, (list, tuple)) else [argument])
        for tensor in found:
            if is_lazy(tensor):
                self._changed[memory_of(tensor)] = True
        return [tensor for tensor in found if tensor is not None]

    # ---------------------------------------------------------------- shadows

    def _of_lazy(self, tensor: torch.Tensor) -> torch.Tensor:
        memory = memory_of(tensor)
        found = self._memories.get(memory)
        if found is None:
            self._recorder.fetch_whole([tensor], CAUSE)
            found = self._memories[memory] = self._recorder.host_bytes(tensor).clone()
        view = torch.empty(0, dtype=tensor.dtype)
        return _with_bits(view.set_(found, tensor.storage_offset(), tensor.size(), tensor.stride()), tensor)

    def _shadow_plain(self, tensor: torch.Tensor) -> None:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in self._plain:
            self._plain[memory.data_ptr()] = (memory, memory.clone())

    def _follow_stream(self) -> None:
        """Follow what touched the host's generator between two ops: a seed, the pool's return, or that its
        state was read, and perhaps set to what it had been."""
        state = DEFAULT.get_state()
        settled = self._drawn and not self._recorder.segment.random.drawn
        if settled or not torch.equal(state, self._host_stream):
            self._stream = state


def _is_default(generator: torch.Generator) -> bool:
    """Return whether it is the default one, of which a dispatched op gets another Python object."""
    default: Any = DEFAULT
    return bool(generator._cdata == default._cdata)  # type: ignore[attr-defined]


def _with_bits(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` with the lazy bits (conjugate, negative) of ``like``."""
    if like.is_conj():
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if like.is_neg() else tensor


def _laid_out_like(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """``theirs``, in memory as the pool keeps it."""
    theirs = theirs.detach()
    bits = (ours.is_conj(), ours.is_neg()) == (theirs.is_conj(), theirs.is_neg())
    if bits and theirs.stride() == ours.stride() and theirs.storage_offset() == ours.storage_offset():
        return theirs
    made = torch.empty_strided(tuple(ours.shape), ours.stride(), dtype=ours.dtype)
    _with_bits(made, ours).copy_(theirs)
    return made
