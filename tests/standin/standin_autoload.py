"""What torch calls at the end of its own import, in processes that have this folder on their path."""

from __future__ import annotations

import json
import os

VARIABLE = "TORCH_STANDIN"


def autoload() -> None:
    """Have the device where ``TORCH_STANDIN`` holds the options of :func:`standin.configure` as JSON."""
    options = os.environ.get(VARIABLE)
    if options is not None:
        import standin

        standin.install()
        standin.configure(**json.loads(options))
