"""Names for what lies on the pool: layouts, storages and values.

A :class:`LazyStorage` is one memory, shared by a tensor and its views. It may be current on the pool, on the
host, or both:

- ``version`` counts writes, wherever they happen;
- ``host`` holds the bytes as of ``host_version``;
- ``generation`` says which pool memory is meant: a write on the host (or the loss of the pool) starts a new
  one, and a :class:`LazyValue` whose own generation is older has to be derived again before the pool can
  use it.

So no read can be stale: a host read needs ``host_version == version``, a pool read ``value.generation ==
storage.generation``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, ClassVar, Protocol

import torch

from djinn_lab.capture.shape_rules.strides import is_dense, may_overlap
from djinn_lab.srg.program import DTYPE_BYTES, Residency, TensorMeta, row_major

_Key = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bool, bool]


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Layout:
    """Interned dtype, shape and stride: equal layouts are one object, so comparing is comparing identity.

    ``conjugate`` and ``negative`` are torch's own lazy bits: what is meant is the conjugate (or the negative)
    of what lies in memory. ``in_memory`` is the same layout without them, itself for nearly all.
    ``dense``: every byte from the first element to the last is one element's. ``overlaps``: two elements may
    lie at one place. ``row_major``: exactly like ``torch.empty(shape)``, in dimensions of size 1, too."""

    __slots__ = (
        "_dense",
        "conjugate",
        "dtype",
        "in_memory",
        "meta",
        "nbytes",
        "negative",
        "numel",
        "row_major",
        "shape",
        "span_bytes",
        "stride",
    )

    _interned: ClassVar[dict[_Key, Layout]] = {}

    def __init__(
        self,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        conjugate: bool,
        negative: bool,
    ) -> None:
        self.conjugate = conjugate
        self.negative = negative
        self.in_memory = Layout.of(dtype, shape, stride) if conjugate or negative else self
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        self.meta = TensorMeta(_name(dtype), shape, stride)
        self.numel = prod(shape)
        self.nbytes = self.numel * dtype.itemsize
        self.row_major = stride == row_major(shape)
        self.span_bytes = 0
        if self.numel:
            steps = [(size - 1) * step for size, step in zip(shape, stride, strict=True)]
            self.span_bytes = (1 + sum(steps)) * DTYPE_BYTES[self.meta.dtype]
        self._dense = True if self.row_major else None

    @property
    def dense(self) -> bool:
        if self._dense is None:
            self._dense = self.span_bytes == self.nbytes and is_dense(self.shape, self.stride)
        return self._dense

    @property
    def overlaps(self) -> bool:
        return not self.dense and may_overlap(self.shape, self.stride)

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        conjugate: bool = False,
        negative: bool = False,
    ) -> Layout:
        key = (dtype, shape, stride, conjugate, negative)
        layout = cls._interned.get(key)
        if layout is None:
            layout = cls._interned[key] = cls(*key)
        return layout

    @classmethod
    def of_tensor(cls, tensor: torch.Tensor) -> Layout:
        return cls.of(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())

    @classmethod
    def of_meta(cls, meta: TensorMeta) -> Layout:
        return cls.of(getattr(torch, meta.dtype), meta.shape, meta.stride)


def read_as(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return ``tensor``, which lies in memory like ``layout``, with the lazy bits of ``layout``."""
    if layout.conjugate:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if layout.negative else tensor


class StorageOwner(Protocol):
    """The interface of a recorder for the lazy tensors that it made. ``dead``: ids that no tensor holds any
    more."""

    dead: list[int]
    may_display: Callable[[], bool]
    owner: object

    def run_outside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def fetch(self, values: Sequence[LazyValue], cause: str) -> list[torch.Tensor]: ...

    def array(self, value: LazyValue, cause: str) -> Any: ...

    def window(self, value: LazyValue, cause: str) -> torch.Tensor: ...

    def share_between_processes(self, value: LazyValue) -> None: ...

    def clone(self, tensor: Any) -> torch.Tensor: ...

    def adopt_copy(self, tensor: torch.Tensor) -> Any: ...

    def make_plain_share(self, tensor: torch.Tensor, lazy: Any) -> None: ...

    def make_lazy_share(self, lazy: Any, plain: torch.Tensor) -> None: ...

    def look_at(self, tensor: Any, other: Any) -> None: ...


class Exposure:
    """Others hold a storage's host memory. ``digest`` of its bytes when last compared; ``for_good``: it
    cannot be known when they let go; ``pinned``: a user knows the address, until the next cell."""

    __slots__ = ("digest", "for_good", "pinned")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.for_good = False
        self.pinned: torch.Tensor | None = None


class LazyStorage:
    """One memory. ``base_id`` names a pool value that covers all of it (set when it was sent from the
    host)."""

    __slots__ = (
        "__weakref__",
        "base_id",
        "base_layout",
        "exposure",
        "generation",
        "host",
        "host_version",
        "id",
        "nbytes",
        "recorder",
        "residency",
        "version",
    )

    def __init__(self, recorder: StorageOwner, identifier: int, nbytes: int, residency: Residency) -> None:
        self.recorder = recorder
        self.id = identifier
        self.nbytes = nbytes
        self.residency: Residency = residency
        self.version = 0
        self.generation = 0
        self.host: torch.UntypedStorage | None = None
        self.host_version: int | None = None
        self.base_id: int | None = None
        self.base_layout: Layout | None = None
        self.exposure: Exposure | None = None

    def host_is_current(self) -> bool:
        return self.host is not None and self.host_version == self.version

    def written_on_pool(self) -> None:
        """Note that a recorded op writes this memory: the host's bytes, if any, are old from now on."""
        self.version += 1
        self.host = self.host_version = None

    def written_on_host(self) -> None:
        """Note that the host's bytes were changed: the pool's copy, if any, is old from now on."""
        self.version += 1
        self.host_version = self.version
        self.forget_pool_copy()

    def forget_pool_copy(self) -> None:
        """Make the host's bytes the only valid ones (none are, when the pool was lost before they were
        fetched)."""
        if self.base_id is not None:
            self.recorder.dead.append(self.base_id)
            self.base_id = None
        self.generation += 1


class LazyValue:
    """One tensor on the pool: a layout at an offset (in elements) of a storage."""

    __slots__ = ("__weakref__", "generation", "id", "layout", "offset", "owned", "storage")

    def __init__(
        self, storage: LazyStorage, identifier: int, layout: Layout, offset: int, generation: int
    ) -> None:
        self.storage = storage
        self.id = identifier
        self.layout = layout
        self.offset = offset
        self.generation = generation
        self.owned = True

    def covers_storage(self) -> bool:
        layout = self.layout
        return (
            self.offset == 0
            and layout.dense
            and layout.nbytes == self.storage.nbytes
            and layout.in_memory is layout
        )

    def host_view(self) -> torch.Tensor:
        """Return a plain tensor over the storage's host bytes, which must be current."""
        host = self.storage.host
        assert host is not None
        tensor = torch.empty(0, dtype=self.layout.dtype)
        return read_as(tensor.set_(host, self.offset, self.layout.shape, self.layout.stride), self.layout)
