"""A region whose kernels were recorded with the memory that they read and write, and start as one.

A recording names memory by its address, and holds none of a session. What a session has from run to run, such
as weights, mostly stays where it is, and is read there. Other inputs are copied to memory of the recording's
own before each run, and results are copied out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import torch

from djinn_lab.protocol.compiling import first_line
from djinn_lab.worker.compiled.compilers import RunLibrary
from djinn_lab.worker.compiled.memory import copied, span_of
from djinn_lab.worker.memory_account import MemoryAccount
from djinn_lab.worker.outcome import RegionLeft

Tensors = Sequence[torch.Tensor]
Replay = Callable[[], None]
Record = Callable[[Callable[[], Tensors]], tuple[Replay, Tensors]]
"""See :func:`djinn_lab.worker.accelerator.graphs.recorder`."""

OBSERVED_RUNS = 3
"""So many runs show which inputs lie elsewhere in each."""
SMALL_SHARE = 16
"""One of so many bytes that a region reads may be copied before each run, though it seemed to stay."""
UNRECORDED_MAX = 5
"""So many runs in a row may run op by op; then what is recorded is of no use."""


class NotRecorded(RegionLeft):
    """There was no recording, and none could be made; nothing of the region ran."""


class Recording:
    """``moving``: places of inputs that are copied; the others lie at ``addresses``, as when it was made.
    ``written``: places of inputs that the region writes."""

    def __init__(
        self, run: RunLibrary, record: Record, inputs: Tensors, moving: frozenset[int], written: Sequence[int]
    ) -> None:
        self._addresses = _addresses(inputs)
        self._written = [place for place in written if place in moving]
        self._own = {place: copied(inputs[place]) for place in sorted(moving)}
        self._alike = _alike(self._own)
        given = [self._own.get(place, tensor) for place, tensor in enumerate(inputs)]
        self._replay, self._made = record(lambda: run(given))

    def serves(self, addresses: Sequence[int]) -> bool:
        """Return whether inputs at these addresses can be computed with."""
        return all(
            place in self._own or here == there
            for place, (here, there) in enumerate(zip(addresses, self._addresses, strict=True))
        )

    def run(self, inputs: Tensors) -> list[torch.Tensor]:
        for places in self._alike:
            own = [span_of(self._own[place]) for place in places]
            torch._foreach_copy_(own, [span_of(inputs[place]) for place in places])
        self._replay()
        for place in self._written:
            inputs[place].copy_(self._own[place])
        return [tensor.clone() for tensor in self._made]


class RecordedRun:
    """Runs one region of one program. ``run``: its ops. ``nbytes``: that these have in memory at most, which
    a recording keeps.

    ``settled``: the last run was that of a recording which had been made before."""

    def __init__(
        self, run: RunLibrary, record: Record, written: Sequence[int], account: MemoryAccount, nbytes: int
    ) -> None:
        self.settled = False
        self._run = run
        self._record = record
        self._written = written
        self._account = account
        self._nbytes = nbytes
        self._moving: frozenset[int] = frozenset()
        self._before: Sequence[int] = ()
        self._runs = self._unrecorded = 0
        self._recording: Recording | None = None
        self._held_bytes = 0

    def __call__(self, inputs: Tensors) -> Tensors:
        """Raises NotRecorded, with nothing done."""
        addresses = _addresses(inputs)
        recording, self.settled = self._recording, False
        if recording is not None and recording.serves(addresses):
            self.settled, self._unrecorded = True, 0
            return recording.run(inputs)
        if self._is_due(inputs, addresses):
            return self._recorded(inputs).run(inputs)
        if self._unrecorded == UNRECORDED_MAX:
            raise NotRecorded("its inputs lie elsewhere in each run")
        self._unrecorded += 1
        return self._run(inputs)

    def drop(self) -> None:
        """Forget the recording, and give its memory back."""
        self._recording = None
        self._account.release_other(self._held_bytes)
        self._held_bytes = 0

    def __del__(self) -> None:
        self.drop()

    def _is_due(self, inputs: Tensors, addresses: Sequence[int]) -> bool:
        """Return whether what was observed suffices: all inputs that are read in place lie where they lay in
        the run before."""
        before, self._before = self._before, addresses
        self._runs += 1
        if self._runs == 1:
            return False
        moved = {
            place for place, (now, then) in enumerate(zip(addresses, before, strict=True)) if now != then
        }
        if self._runs <= OBSERVED_RUNS or self._are_small(inputs, moved - self._moving):
            self._moving |= moved
        return self._runs >= OBSERVED_RUNS and moved <= self._moving

    def _are_small(self, inputs: Tensors, moved: Set[int]) -> bool:
        """Return whether copies of these inputs cost little, so that they may always be copied: an allocator
        may have given them the same place for some runs by chance."""
        every = sum(tensor.nbytes for tensor in inputs)
        return moved.isdisjoint(self._written) and (
            SMALL_SHARE * sum(inputs[place].nbytes for place in moved) <= every
        )

    def _recorded(self, inputs: Tensors) -> Recording:
        self.drop()
        nbytes = self._nbytes + sum(span_of(inputs[place]).nbytes for place in self._moving)
        if not self._account.reserve_other(nbytes):
            raise NotRecorded("there was no memory to record it")
        self._held_bytes = nbytes
        try:
            self._recording = Recording(self._run, self._record, inputs, self._moving, self._written)
        except RuntimeError as error:
            self.drop()
            raise NotRecorded(f"it cannot be recorded: {first_line(error)}") from error
        return self._recording


def _alike(own: Mapping[int, torch.Tensor]) -> Sequence[Sequence[int]]:
    """Return the places of tensors that a GPU copies by one kernel: those of one dtype."""
    found: dict[torch.dtype, list[int]] = {}
    for place, tensor in own.items():
        found.setdefault(tensor.dtype, []).append(place)
    return list(found.values())


def _addresses(tensors: Tensors) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
