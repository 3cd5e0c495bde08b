"""A kernel that uses a GPU of the pool's machine by itself says so once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from djinn_lab.magics.own_gpu import OwnGpu


def session(kind: str = "cuda", directory: str | None = "/dev/shm/blobs") -> Any:
    device = SimpleNamespace(device=f"{kind}:0", kind=kind)
    return SimpleNamespace(
        connected=True, welcome=SimpleNamespace(devices=[device], blob_directory=directory)
    )


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


def test_it_is_said_once(begun: None, capsys: pytest.CaptureFixture[str]) -> None:
    own = OwnGpu()
    own.look(session())
    assert "where the pool has cuda:0" in capsys.readouterr().err
    own.look(session())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "other",
    [session(kind="cpu"), session(directory=None)],
    ids=["no GPU", "elsewhere"],
)
def test_what_is_of_no_concern_to_the_pool_is_not_said(
    begun: None, capsys: pytest.CaptureFixture[str], other: Any
) -> None:
    OwnGpu().look(other)
    assert capsys.readouterr().err == ""


def test_nothing_is_said_before_a_gpu_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    OwnGpu().look(session())
    assert capsys.readouterr().err == ""
