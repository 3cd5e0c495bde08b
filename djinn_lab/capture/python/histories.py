"""What tensors were to autograd before a cell wrote them in place: such an op counts their version on, and
gives them another graph where a gradient flows through it, whether it runs or not."""

from __future__ import annotations

from typing import NamedTuple

import torch

from djinn_lab.capture.sending.segment import Place, Segment, paused

_BASE = torch._C.TensorBase
"""Whose methods no cell replaces."""


class _History(NamedTuple):
    """``left``: the version when the cell's code had ended."""

    tensor: torch.Tensor
    had_graph: bool
    required: bool
    version: int
    place: Place
    left: int | None = None


class Histories:
    """Of the cell that is recorded, as a follower of its parts. Python cannot give a tensor back a graph that
    it had, nor see to views."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._kept: dict[int, _History] = {}
        self._late: dict[int, _History] = {}
        """Of what was not computed."""
        self.keeps = False
        """Also those of a part that was computed."""

    def remember(self, tensor: torch.Tensor) -> None:
        """A tensor is about to be written, or changed otherwise."""
        if tensor.is_inference() or id(tensor) in self._kept:
            return
        had_graph = tensor.grad_fn is not None or tensor._is_view()
        self._kept[id(tensor)] = _History(
            tensor, had_graph, tensor.requires_grad, tensor._version, self._segment.place
        )

    def leave(self) -> None:
        """The cell's code has ended: what others write from now on stays."""
        for key, one in self._kept.items():
            self._kept[key] = one._replace(left=one.tensor._version)

    def sent(self) -> None:
        pass

    def computed(self, part: int) -> None:
        if not self.keeps:
            self._kept = {key: one for key, one in self._kept.items() if one.place[0] > part}

    def failed(self, place: Place) -> None:
        """Let tensors be what they were that were written later, once the cell is over: torch may be in the
        middle of an op, where it changes no graph."""
        late = {key: one for key, one in self._kept.items() if one.place >= place}
        self._kept = {key: one for key, one in self._kept.items() if key not in late}
        self._late = {**late, **self._late}

    def take(self, puts_back: bool) -> None:
        """The cell is over: forget them all. ``puts_back``: let tensors be what they were, unless they were
        written since."""
        late, self._late = self._late, {}
        kept, self._kept = self._kept, {}
        _put_back({**late, **kept} if puts_back else late)


def _put_back(histories: dict[int, _History]) -> None:
    with paused():
        for tensor, had_graph, required, version, _, left in histories.values():
            if left is not None and tensor._version != left:
                continue
            if tensor.grad_fn is not None and not had_graph:
                _BASE.detach_(tensor)
            if tensor.is_leaf and not had_graph and tensor.requires_grad is not required:
                _BASE.requires_grad_(tensor, required)
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
