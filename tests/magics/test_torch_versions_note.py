"""A notebook whose torch is of another minor version than the pool's is told so once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from djinn_lab.magics.torch_versions import TorchVersionsNote
from djinn_lab.protocol.messages import DeviceInfo, Welcome

HERE = str(torch.__version__)


def session(*versions: str) -> Any:
    devices = [DeviceInfo(f"cpu:{n}", "cpu", "a CPU", 1, 1, version) for n, version in enumerate(versions)]
    return SimpleNamespace(
        connected=True, welcome=Welcome(1, "0", "session", "user", "pool", False, None, devices)
    )


def test_another_minor_version_is_told_once_with_both_versions(capsys: pytest.CaptureFixture[str]) -> None:
    note = TorchVersionsNote()
    note.look(session("2.99.1", "2.99.1"))
    said = capsys.readouterr().err
    assert f"This notebook has torch {HERE}, the pool 2.99.1:" in said
    note.look(session("2.99.1"))
    assert capsys.readouterr().err == ""
    note.look(session("2.98.0"))
    assert "2.98.0" in capsys.readouterr().err


@pytest.mark.parametrize("of_pool", [HERE, f"{HERE.split('+')[0]}+cu130", ""])
def test_the_same_minor_version_is_not_mentioned(of_pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is a device that has not started yet."""
    TorchVersionsNote().look(session(of_pool))
    assert capsys.readouterr().err == ""
