"""What a call came to, eagerly and captured, and how the two compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.lazy import memory_of as lazy_memory_of
from djinn_lab.errors import CaptureError, RemoteError

EQUAL, BOTH_RAISE, REFUSED = "equal", "raises in both alike", "refused with advice"
UNDEFINED = "undefined or random in eager torch, equal in layout"
MOVED = "other last bits in eager too when the same inputs lie elsewhere in memory"
WRONG_VALUE, WRONG_LAYOUT, WRONG_MEMORY = "wrong value", "wrong layout", "wrong aliasing"
RAISED_DIFFERENTLY, CRASH = "raised differently", "raised where eager does not"
RIGHT = (EQUAL, BOTH_RAISE, UNDEFINED)
SILENT = (WRONG_VALUE, WRONG_LAYOUT, WRONG_MEMORY)
ROUNDED = "equal within rounding, not bit for bit"
CLASSES = (*RIGHT, MOVED, ROUNDED, REFUSED, *SILENT, RAISED_DIFFERENTLY, CRASH)


@dataclass(frozen=True)
class Verdict:
    outcome: str
    reason: str = ""


@dataclass(frozen=True)
class Layout:
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conjugate: bool
    negative: bool
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        strided = tensor.layout is torch.strided
        return cls(
            tensor.dtype,
            tuple(tensor.shape),
            _stride(tensor) if strided else (),
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.requires_grad,
        )


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Where it means anything: 0 for dimensions along which no step is taken."""
    if not tensor.numel():
        return (0,) * tensor.dim()
    return tuple(step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


@dataclass
class Returned:
    """``leaves``: plain values by then. ``layouts`` as they were before anything ran. ``memory[i]``: which
    tensor, inputs first, the i-th one shares its memory with (the first such). ``stream``: the random state
    it left."""

    structure: pytree.TreeSpec
    leaves: list[Any]
    layouts: list[Layout | None]
    memory: list[int]
    stream: torch.Tensor


@dataclass
class Raised:
    error: BaseException


Outcome = Returned | Raised


def memory_of(leaves: list[Any]) -> list[int]:
    seen: dict[tuple[str, int], int] = {}
    found = []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
            if is_lazy(leaf):
                key = "lazy", id(lazy_memory_of(leaf))
            else:
                key = "plain", leaf.untyped_storage()._cdata
            found.append(seen.setdefault(key, position))
        else:
            found.append(position)
    return found


def compare(eager: Outcome, captured: Outcome) -> Verdict:
    if isinstance(captured, Raised):
        return _compare_raised(eager, captured.error)
    if isinstance(eager, Raised):
        return Verdict(RAISED_DIFFERENTLY, f"eager raises {_described(eager.error)}; captured returns")
    if eager.structure != captured.structure:
        return Verdict(WRONG_LAYOUT, f"returns {captured.structure} for {eager.structure}")
    for one, other in zip(eager.layouts, captured.layouts, strict=True):
        if one != other:
            return Verdict(WRONG_LAYOUT, f"{_layout(other)} for {_layout(one)}")
    if eager.memory != captured.memory:
        return Verdict(WRONG_MEMORY, f"memory shared like {captured.memory} for {eager.memory}")
    for position, (want, got) in enumerate(zip(eager.leaves, captured.leaves, strict=True)):
        difference = _difference(want, got)
        if difference:
            return Verdict(WRONG_VALUE, f"item {position}: {difference}")
    if not torch.equal(eager.stream, captured.stream):
        return Verdict(WRONG_VALUE, "the random stream continues at another position")
    return Verdict(EQUAL)


def nearly_equal(one: Outcome, other: Outcome) -> bool:
    """Within rounding, as far as a few operations can carry it."""
    assert isinstance(one, Returned)
    assert isinstance(other, Returned)
    pairs = zip(one.leaves, other.leaves, strict=True)
    return all(
        torch.allclose(want, got.to(want.dtype), rtol=1e-3, atol=1e-5, equal_nan=True)
        for want, got in pairs
        if isinstance(want, torch.Tensor) and want.layout is torch.strided
    )


def _layout(layout: Layout | None) -> str:
    if layout is None:
        return "no tensor"
    flags = [name for name in ("conjugate", "negative", "requires_grad") if getattr(layout, name)]
    return " ".join(map(str, (layout.dtype, layout.shape, "stride", layout.stride, *flags)))


def _compare_raised(eager: Outcome, error: BaseException) -> Verdict:
    if isinstance(eager, Raised) and _same_error(eager.error, error):
        return Verdict(BOTH_RAISE)
    if isinstance(error, CaptureError) and error.advice:
        return Verdict(REFUSED, f"{error.message} {error.advice}")
    if isinstance(eager, Raised):
        return Verdict(
            RAISED_DIFFERENTLY, f"eager raises {_described(eager.error)}; captured {_described(error)}"
        )
    return Verdict(CRASH, _described(error))


def _same_error(eager: BaseException, error: BaseException) -> bool:
    return _described(error).startswith(_described(eager)) and (
        type(error) is type(eager) or (isinstance(error, RemoteError) and isinstance(error, type(eager)))
    )


def _described(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".replace("LazyTensor", "Tensor")  # torch names arguments' types
    return re.sub(r"0x[0-9a-f]+", "0x", text.split("\nException raised from")[0]).split("\n")[0][:300]


def _difference(want: Any, got: Any) -> str:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        same = want == got or (want != want and got != got)
        return "" if same and type(want) is type(got) else f"{got!r} for {want!r}"[:200]
    if want.layout is not torch.strided:
        return "" if torch.equal(want.to_dense(), got.to_dense()) else "other elements"
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)} for {tuple(want.shape)}"
    if same_bits(want, got):
        return ""
    unequal = want != got
    unequal &= ~((want != want) & (got != got))
    count = int(unequal.sum())
    if not count:
        return "" if not _signs_differ(want, got) else "the sign of a zero"
    largest = (want.to(torch.complex128) - got.to(torch.complex128)).abs()[unequal].max()
    return f"{count} of {want.numel()} elements, by up to {float(largest):.3g}"


def _signs_differ(want: torch.Tensor, got: torch.Tensor) -> bool:
    if not want.dtype.is_floating_point:
        return False
    return bool(((want == 0) & (torch.signbit(want) != torch.signbit(got))).any())


def same_bits(want: torch.Tensor, got: torch.Tensor) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)

    return torch.equal(bits(want), bits(got))
