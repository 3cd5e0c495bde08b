"""Tells once that a notebook and its pool have different versions of torch."""

from __future__ import annotations

import sys

import torch

from djinn_lab.client.session import Session
from djinn_lab.protocol.version import minor_of
from djinn_lab.units import listed


class TorchVersionsNote:
    """Of one notebook."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()

    def look(self, session: Session) -> None:
        """Look whether the pool's torch is of another minor version than this process's."""
        if not session.connected:
            return
        found, here = session.welcome.torch_versions, str(torch.__version__)
        if found == self._told or all(minor_of(one) == minor_of(here) for one in found):
            return
        self._told = found
        print(
            f"This notebook has torch {here}, the pool {listed(found)}: results of some ops differ in their "
            "last bits, and ops that the pool's torch lacks are refused by name. Install the same version in "
            "both for equal bits.",
            file=sys.stderr,
        )
