"""A compiled region in place of its ops: called as an op is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from djinn_lab.protocol.compiling import first_line
from djinn_lab.srg.program import Program, Scalar
from djinn_lab.srg.region_programs import region_ops, region_peak_bytes
from djinn_lab.srg.regions import REGION_OP, Region
from djinn_lab.worker.compiled.distance import distance
from djinn_lab.worker.compiled.libraries import Library
from djinn_lab.worker.compiled.memory import copied, same_bytes, span_of
from djinn_lab.worker.compiled.recorded import NotRecorded, RecordedRun
from djinn_lab.worker.compiled.replay import RegionReplay
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.outcome import RegionLeft
from djinn_lab.worker.preparation import Expected
from djinn_lab.worker.templates import Call
from djinn_lab.worker.transfer import zeros_strided

Tensors = Sequence[torch.Tensor]


class RegionCall:
    """Like a :class:`~djinn_lab.worker.templates.Call`, for the node that stands for a region
    (:func:`djinn_lab.srg.regions.with_regions`).

    ``checking``: the region's ops run, too, and theirs are the results. ``difference``: the largest that was
    found, as :func:`~djinn_lab.worker.compiled.distance.distance` has it; None before a check. ``recorded``:
    what runs, where the region's ops are recorded."""

    op = REGION_OP
    resizes = appends = False
    own: tuple[int, ...] = ()
    native = None

    def __init__(
        self,
        program: Program,
        region: Region,
        library: Library,
        calls: Sequence[Call],
        memory: MemoryAccount,
        device: torch.device,
    ) -> None:
        ops = region_ops(program, region)
        expected = [Expected(meta) for meta in ops.metas]
        used = dict.fromkeys(node.template for node in program.nodes[region.first : region.end])
        self.library = library
        self.writes = region.written
        self.checking = False
        self.difference: float | None = None
        self._memory = memory
        self._device = device
        self._roots = [expected[_meta_of(ops, value)] for value in ops.keep]
        self._views = _views_after(program, region, calls)
        views = sum(len(program.nodes[index].outputs) for index in region.views)
        self.fresh = (True,) * len(self._roots) + (False,) * views
        self._root_bytes = sum(root.span_bytes for root in self._roots)
        self._peak_bytes = max(region_peak_bytes(ops), self._root_bytes)
        self.recorded = (
            None
            if library.run is None or library.record is None
            else RecordedRun(library.run, library.record, region.written, memory, self._peak_bytes)
        )
        self._numbered = [place.node - region.first for place in region.numbers]
        made = [calls[template] for template in used]
        self._replay = RegionReplay(ops, made, expected, [call.own for call in made])

    @property
    def is_checked(self) -> bool:
        """Return whether the last check was one of what will run."""
        return self.difference is not None and (self.recorded is None or self.recorded.settled)

    def __call__(self, tensors: Sequence[torch.Tensor | None], scalars: Sequence[Scalar]) -> list[Any]:
        """Return the roots and what the region's views make. The roots' memory is reserved; the rest is
        reserved here. Raises RegionLeft, with nothing done."""
        inputs = [tensor for tensor in tensors if tensor is not None]
        needed = self._peak_bytes - self._root_bytes
        if self.checking:
            needed += self._peak_bytes + self._check_bytes(inputs)
        if needed > self._memory.free_bytes:
            raise RegionLeft("there was no memory for it")
        self._memory.reserve(needed, "a compiled region")
        try:
            roots = self._checked(inputs, scalars) if self.checking else self._compiled(inputs, scalars)
        finally:
            self._memory.release(needed)
        known: list[Any] = [*inputs, *roots]
        for call, places, scalars_of_view in self._views:
            returned = call([known[place] for place in places], scalars_of_view)
            known += returned if isinstance(returned, (list, tuple)) else (returned,)
        return known[len(inputs) :]

    def _check_bytes(self, inputs: Tensors) -> int:
        """Return how much a check needs besides what both ways make."""
        if self.library.foreign:
            return sum(span_of(tensor).nbytes for tensor in inputs)
        return 2 * sum(inputs[place].nbytes for place in self.writes)

    def _compiled(self, inputs: Tensors, scalars: Sequence[Scalar]) -> list[torch.Tensor]:
        try:
            return self._run(inputs, scalars)
        except RegionLeft as left:
            if not self.writes or isinstance(left, NotRecorded):
                raise
            raise AssertionError(
                f"{self.library.problem}, and may have written some of what its ops write."
            ) from None

    def _run(self, inputs: Tensors, scalars: Sequence[Scalar]) -> list[torch.Tensor]:
        """Run the library. Raises RegionLeft where that fails, after which it is not used any more."""
        run = self.recorded or self.library.run
        if self.library.run is None or run is None:
            raise RegionLeft(self.library.problem)
        numbers = torch.tensor(scalars, dtype=torch.float64, device=self._device).unbind() if scalars else ()
        taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        try:
            returned = list(run([*inputs, *numbers]))
            if len(returned) != len(self._roots):
                raise ValueError(f"it returned {len(returned)} results in place of {len(self._roots)}")
            pairs = zip(returned, self._roots, strict=True)
            return [_own(root, as_is, taken, self._device) for root, as_is in pairs]
        except RegionLeft:
            raise
        except Exception as error:  # a compiler of an installed package may raise anything
            raise self._left(f"its compiled form failed: {first_line(error)}") from error

    def _left(self, problem: str) -> RegionLeft:
        """Use the library no more, for what it did."""
        self.library.run, self.library.problem = None, problem
        return RegionLeft(problem)

    def _checked(self, inputs: Tensors, scalars: Sequence[Scalar]) -> list[torch.Tensor]:
        """Run both ways, each on the same values, and return what the ops make."""
        ours = self._apart(inputs, scalars) if self.library.foreign else self._in_place(inputs, scalars)
        numbers = {index: (number,) for index, number in zip(self._numbered, scalars, strict=True)}
        theirs = self._replay(inputs, numbers)
        pairs = zip(ours, [*theirs, *(inputs[place] for place in self.writes)], strict=True)
        self.difference = max(distance(one, other) for one, other in pairs)
        return theirs

    def _apart(self, inputs: Tensors, scalars: Sequence[Scalar]) -> list[torch.Tensor]:
        """Run the library on copies, since a package's may write what it should only read. Return its
        results, and then what it wrote. Raises RegionLeft where it wrote something else."""
        copies = [copied(tensor) for tensor in inputs]
        ours = self._run(copies, scalars)
        for place, (copy, tensor) in enumerate(zip(copies, inputs, strict=True)):
            if place not in self.writes and not same_bytes(copy, tensor):
                raise self._left("its compiled form writes what the region only reads")
        return ours + [copies[place] for place in self.writes]

    def _in_place(self, inputs: Tensors, scalars: Sequence[Scalar]) -> list[torch.Tensor]:
        """Run the library on the memory itself, and put back what it writes. Return its results, and then
        copies of what it wrote."""
        written = [inputs[place] for place in self.writes]
        before = [tensor.clone() for tensor in written]
        try:
            return self._run(inputs, scalars) + [tensor.clone() for tensor in written]
        finally:
            for tensor, content in zip(written, before, strict=True):
                tensor.copy_(content)


def _own(tensor: torch.Tensor, expected: Expected, taken: set[int], device: torch.device) -> torch.Tensor:
    """Return the result in memory of its own, laid out as capture predicted: a compiler may return a part of
    a larger tensor, or one memory for two results."""
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        raise ValueError(f"it returned {tuple(tensor.shape)} {tensor.dtype} in place of {expected.meta}")
    if tensor.device != device:
        raise ValueError(f"it returned a tensor on {tensor.device} in place of {device}")
    tensor = expected.check(tensor, True, REGION_OP)
    memory = tensor.untyped_storage()
    if tensor.numel() and (memory.data_ptr() in taken or memory.nbytes() != expected.span_bytes):
        own = zeros_strided(expected.shape, expected.stride, expected.dtype, tensor.device)
        tensor = own.copy_(tensor)
        memory = tensor.untyped_storage()
    taken.add(memory.data_ptr())
    return tensor


def _meta_of(region: Program, value: int) -> int:
    for node in region.nodes:
        if value in node.outputs:
            meta = node.output_metas[node.outputs.index(value)]
            assert meta is not None
            return meta
    raise AssertionError(f"the region does not make value {value}.")


_ViewCall = tuple[Call, list[int], Sequence[Scalar]]


def _views_after(program: Program, region: Region, calls: Sequence[Call]) -> list[_ViewCall]:
    """Return the calls that make the region's views again. Each reads its inputs by their places among the
    region's inputs, its roots and what earlier ones of these calls made."""
    nodes = program.nodes
    given = [nodes[place.node].inputs[place.position] for place in region.inputs]
    given += [nodes[place.node].outputs[place.position] for place in region.roots]
    places: dict[int | None, int] = {value: place for place, value in enumerate(given)}
    count = len(given)
    found: list[_ViewCall] = []
    for index in region.views:
        node = nodes[index]
        read = [places[value] for value in node.inputs if value is not None]
        found.append((calls[node.template], read, node.scalars))
        for value in node.outputs:
            places[value] = count
            count += 1
    return found
