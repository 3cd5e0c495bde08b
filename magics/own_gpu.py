"""Tells once that a cell which is not captured uses a GPU of the pool's machine beside the pool."""

from __future__ import annotations

import sys

import torch

from djinn_lab.client.session import Session


class OwnGpu:
    """Of one notebook."""

    def __init__(self) -> None:
        self._told = False

    def look(self, session: Session) -> None:
        """Look whether torch has begun to use a GPU here."""
        if self._told or not torch.cuda.is_initialized() or not session.connected:
            return
        welcome = session.welcome
        cards = [one.device for one in welcome.devices if one.kind == "cuda"]
        if welcome.blob_directory is None or not cards:  # the pool is elsewhere, or has no GPU
            return
        self._told = True
        print(
            f"A cell without %%djinn uses a GPU of this machine, where the pool has {', '.join(cards)}: the "
            "pool cannot plan with that memory, and its cells may find too little. Put %%djinn on such "
            "cells, and restart the kernel to free it.",
            file=sys.stderr,
        )
