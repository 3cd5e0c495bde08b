"""A pool whose torch lacks ops that the notebook's torch has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pool_kit import Client, act, running_pool
from stand_in_worker import LACKS_VARIABLE, TORCH_VERSION

NOTEBOOKS_TORCH = "2.9"
"""What a :class:`Client` says."""


def test_an_op_that_the_pools_torch_lacks_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LACKS_VARIABLE, "aten.ones.default aten.qr.default")
    with running_pool(tmp_path) as info, Client(info) as client:
        refused = client.run(act("nothing"))
        assert refused.error is not None
        assert refused.error.type_name == "Refused"
        for named in ("aten.ones.default", f"torch {TORCH_VERSION},", f"torch {NOTEBOOKS_TORCH}."):
            assert named in refused.error.message, refused.error
        assert "doctor" in refused.error.advice
        again = client.run(act("nothing"))
        assert again.error is not None
        assert again.error.message == refused.error.message


def test_ops_that_all_devices_have_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LACKS_VARIABLE, "aten.qr.default")
    with running_pool(tmp_path) as info, Client(info) as client:
        assert client.welcome.torch_versions == (TORCH_VERSION,)
        assert client.run(act("nothing")).error is None
