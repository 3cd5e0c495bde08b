"""The kernel "Python (Djinn)": installs, captures every cell, ``%%local`` opts out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from device_kind import KIND
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest

pytestmark = pytest.mark.processes


def test_kernel_installs_and_runs_captured_cells(
    pool: PoolUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    subprocess.run(
        [sys.executable, "-m", "djinn_lab.cli", "kernel", "install", "--user"],
        env={**pool.environment, "JUPYTER_DATA_DIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    with NotebookKernel(pool.environment, "djinn") as kernel:
        kernel.run("import torch")
        kernel.run("x = torch.ones(3) + 1")
        assert kernel.run("import djinn_lab; djinn_lab.is_lazy(x)").values == ["True"]
        assert kernel.run("x").values == ["tensor([2., 2., 2.])"]
        assert kernel.run("%%local\ny = torch.ones(2)\ntype(y).__name__").values == ["'Tensor'"]
        assert kernel.run("!echo hello").text.strip() == "hello"
        assert f"{KIND}:0" in kernel.run("%djinn status").text
        kernel.run("%%prun -q\nprofiled = torch.ones(3) + 2")
        assert kernel.run("djinn_lab.is_lazy(profiled)").values == ["True"]
        # Every cell is captured: those without torch work do not come between.
        assert "nodes" in kernel.run("%djinn graph").shown[0]
        kernel.run("print('between')")
        assert "predicted" in kernel.run("%djinn schedule").shown[0]
