"""``pack_padded_sequence`` and its inverse without waiting for the pool.

How many sequences are still running at each step follows from the lengths alone, and torch's recurrent
layers read those counts in C++: they and the lengths stay on the host. Only the rows travel.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from djinn_lab.capture.host.interrupts import whole
from djinn_lab.capture.lazy import is_lazy

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

PACK = torch.ops.aten._pack_padded_sequence.default


@whole
def pack(recorder: Recorder, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> object:
    """Return the rows in the order of time (recorded), and the counts (a plain tensor)."""
    with recorder.paused_recording():
        if is_lazy(lengths):
            lengths = recorder.fetch_tensors([lengths], "the lengths of packed sequences")[0]
        outer = tuple(padded.shape[:2])
        numbers = torch.arange(outer[0] * outer[1]).view(*outer, 1)
        order, counts = PACK(numbers, lengths, batch_first)
    return padded.flatten(0, 1).index_select(0, order.flatten()), counts


@whole
def pad(
    recorder: Recorder,
    data: torch.Tensor,
    counts: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad as torch does in C++: one copy for each run of steps with equally many sequences."""
    with recorder.paused_recording():
        running = (
            recorder.fetch_tensors([counts], "the lengths of packed sequences")[0]
            if is_lazy(counts)
            else counts
        ).tolist()
    steps, sequences = len(running), running[0]
    if 0 < total_length < steps:
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {steps}"
        )
    padded = data.new_full((max(steps, total_length), sequences, *data.shape[1:]), padding_value)
    lengths = [0] * sequences
    row = begin = 0
    for step, (before, after) in enumerate(pairwise([*running, 0]), 1):
        lengths[after:before] = [step] * (before - after)
        if after != before:
            rows = before * (step - begin)
            block = data[row : row + rows].view(step - begin, before, *data.shape[1:])
            padded[begin:step, :before].copy_(block)
            row, begin = row + rows, step
    with recorder.paused_recording():
        host_lengths = torch.tensor(lengths)
    return (padded.transpose(0, 1) if batch_first else padded), host_lengths
