"""One call through the pool's check and the worker's own ``Call``, twice, on memory with two fillings."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from sweeps.hostile.memory import FILLINGS, filled
from sweeps.hostile.mutations import mutate
from sweeps.hostile.recorded import Recorded
from sweeps.hostile.schema_calls import drawn_call
from sweeps.operators.samples import Copy, tensors_of

from djinn_lab.errors import Refused
from djinn_lab.srg.program import (
    Argument,
    Atom,
    ComplexNumber,
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
)
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.templates import Call

OK, REFUSED, RAISED, LEAKED, WROTE = "ok", "refused by the pool", "raised", "leaked", "silently wrote"
CPU = torch.device("cpu")
COMPARED_BYTES_MAX = 4 * 2**20
_SCOPE = Scope("", 0, "cell", 1, "other")
_HOLE = TensorHole()


class Verdict(NamedTuple):
    outcome: str
    text: str = ""


def arguments(
    op: str, calls: Mapping[str, Sequence[Recorded]], seed: int
) -> tuple[list[Any], dict[str, Any]]:
    """The first seeds give the recorded calls as they are."""
    random = Random(f"{op}/{seed}")
    found = calls.get(op)
    if found is None:
        args, kwargs = drawn_call(op, random)
        if random.random() < 0.5:
            mutate(args, kwargs, random)
        return args, kwargs
    args, kwargs = found[seed % len(found)].arguments.tree()
    if seed >= len(found):
        mutate(args, kwargs, random)
    return args, kwargs


def attempt(op: str, given: tuple[list[Any], dict[str, Any]]) -> Verdict:
    args, kwargs = given
    template = Template(
        op, [_argument(item) for item in args], {name: _argument(item) for name, item in kwargs.items()}
    )
    try:
        validate_program(program_of(template, tensors_of([args, kwargs])))
    except Refused as refused:
        return Verdict(REFUSED, refused.message)
    first, second = (_run(template, Copy([args, kwargs]), filling) for filling in FILLINGS)
    if isinstance(first, Verdict) or isinstance(second, Verdict):
        for one in (first, second):
            if isinstance(one, Verdict):
                return one
    if first != second:
        return Verdict(LEAKED, "another result where memory held something else before")
    return Verdict(OK)


def program_of(template: Template, tensors: Sequence[torch.Tensor]) -> Program:
    metas = [TensorMeta(str(one.dtype)[6:], tuple(one.shape), _stride(one)) for one in tensors]
    sources = [Source(index, index, index, "weight", None, None) for index in range(len(tensors))]
    node = NodeRecord(0, tuple(range(len(tensors))), (), (), (), 0)
    return Program(
        metas=metas,
        templates=[template],
        scopes=[_SCOPE],
        sources=sources,
        nodes=[node],
        keep=(),
        fetch=(),
        release=(),
    )


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride())


def _argument(item: Any) -> Argument:
    if isinstance(item, torch.Tensor):
        return _HOLE
    if isinstance(item, list | tuple):
        return [_argument(one) for one in item]  # type: ignore[misc]
    if isinstance(item, complex):
        return ComplexNumber(item.real, item.imag)
    if isinstance(item, torch.device):
        return Atom("device", "cpu")
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(item, getattr(torch, kind)):
            return Atom(kind, str(item).removeprefix("torch."))
    return item


def _run(template: Template, copy: Copy, filling: int) -> list[bytes] | Verdict:
    with filled(filling), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = tensors_of(copy.tree(torch.clone))
        before = [_state(one) for one in inputs]
        torch.manual_seed(1)
        try:
            call = Call(template, CPU)
            returned = list(_tensors(call(inputs, ())))
        except Exception as error:  # noqa: BLE001 - the text is what an attacker would read
            return Verdict(RAISED, f"{type(error).__name__}: {error}".partition("\n")[0][:200])
        written = {inputs[place].untyped_storage()._cdata for place in call.writes}
        for place, (one, state) in enumerate(zip(inputs, before, strict=True)):
            if one.untyped_storage()._cdata not in written and _state(one) != state:
                return Verdict(WROTE, f"tensor {place} of {template.op}")
        for one in (*returned, *inputs):
            if not _is_within_memory(one):
                return Verdict(LEAKED, f"a view of {_extent(one)} bytes of {one.untyped_storage().nbytes()}")
        return [_bytes(one) for one in (*returned, *inputs)]


def _tensors(returned: Any) -> Iterator[torch.Tensor]:
    for item in returned if isinstance(returned, list | tuple) else (returned,):
        if isinstance(item, torch.Tensor) and item.layout is torch.strided and item.device == CPU:
            yield item


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), _stride(tensor), tensor.dtype, _bytes(tensor)


def _bytes(tensor: torch.Tensor) -> bytes:
    """Of its whole memory: a view can look between the elements."""
    storage = tensor.untyped_storage()
    if not storage.nbytes() or storage.nbytes() > COMPARED_BYTES_MAX or tensor._is_zerotensor():
        return b""
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())


def _extent(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.element_size()


def _is_within_memory(tensor: torch.Tensor) -> bool:
    return tensor._is_zerotensor() or _extent(tensor) <= tensor.untyped_storage().nbytes()
