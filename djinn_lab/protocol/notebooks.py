"""What client and pool agree on about batch notebooks; importing this loads nothing of the queue."""

from __future__ import annotations

ID_PREFIX = "nb"
"""Of their ids; a cell's begins with a hexadecimal digit."""
ID_CHARACTERS = 10
OPEN_TO = ("owner", "users")
"""Users that may submit them."""
NOTEBOOK_BYTES_MAX = 64 * 2**20
"""Of a submission."""
CELL_OPTIONS_VARIABLE = "DJINN_CELL_OPTIONS"
"""Defaults of a kernel's cells, as given to ``%djinn_config``."""
DEADLINE_VARIABLE = "DJINN_DEADLINE"
"""When the notebook should be done, seconds since the epoch: a cell without ``--deadline`` has the rest."""
