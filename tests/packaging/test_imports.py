"""The cores, the command line and what the pool's process needs start without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_TORCH = (
    "jobs",
    "memory",
    "scheduler",
    "srg",
    "cli",
    "config",
    "protocol",
    "journal",
    "errors",
    "units",
)


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_importing_a_package_and_all_in_it_does_not_import_torch(package: str) -> None:
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module("djinn_lab.{package}")
for module in pkgutil.walk_packages(getattr(package, "__path__", ()), package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pools_server_starts_without_torch() -> None:
    code = "import sys, djinn_lab.pool.server, djinn_lab.client.rest; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
