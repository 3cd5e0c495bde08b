"""What Python calls when it starts, with this folder on its path."""

import os

if os.environ.get("PYTHON_SIMULATED_SYSTEM"):
    import simulated_system  # noqa: F401
