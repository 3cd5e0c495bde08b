"""A notebook whose torch is newer than the pool's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import Script
from worker_kit import Device

from djinn_lab.srg.ops import allowed_ops
from djinn_lab.worker import templates


def test_an_op_that_the_pools_torch_lacks_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = "aten.djinn_of_tomorrow.default"
    monkeypatch.setattr(templates, "allowed_ops", lambda: {*allowed_ops(), newer})
    device, script = Device(tmp_path / "device"), Script()
    value = script.op(newer, script.load(torch.ones(2)))
    failure = device.try_run("session", script.program(fetch=(value,))).failure
    device.close()
    assert failure is not None
    assert failure.type_name == "Refused"
    assert f"torch {torch.__version__} of this pool has no op {newer}" in failure.message
    assert "`djinn-lab doctor` names them" in failure.message
