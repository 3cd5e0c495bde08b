"""A notebook and a pool with different versions of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import Script
from worker_kit import Device

from djinn_lab.errors import Refused
from djinn_lab.srg.ops import Parameter, allowed_ops, parameters
from djinn_lab.worker import templates
from djinn_lab.worker.guards import find_guard


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
    assert templates.lacking_ops.__wrapped__() == (newer,)


def test_this_torch_lacks_no_op_that_a_graph_may_name() -> None:
    assert templates.lacking_ops() == ()


def test_an_op_with_other_arguments_than_listed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = "aten.relu.default"
    longer = (*parameters(op), Parameter("scale", "Tensor", None, False, False, False, False))
    monkeypatch.setattr(templates, "parameters", lambda name: longer if name == op else parameters(name))
    device, script = Device(tmp_path / "device"), Script()
    value = script.op(op, script.load(torch.ones(2)))
    failure = device.try_run("session", script.program(fetch=(value,))).failure
    device.close()
    assert failure is not None
    assert f"torch {torch.__version__} of this pool takes other arguments for {op}" in failure.message


@pytest.mark.parametrize("name", ["grad", "grad_output"])
def test_a_guard_checks_an_argument_whatever_this_torch_calls_it(name: str) -> None:
    """Torch 2.14 renamed the first argument of this op; its kernel trusts the size of that."""
    op = "aten._pdist_backward.default"
    schema = torch._C.parse_schema(
        f"aten::_pdist_backward(Tensor {name}, Tensor self, float p, Tensor pdist) -> Tensor"
    )
    guard = find_guard(op, schema)
    assert guard is not None
    points, distances = torch.randn(4, 2), torch.ones(6)
    assert guard(torch.ops.aten._pdist_backward, (distances, points, 2.0, distances), {}).shape == (4, 2)
    with pytest.raises(Refused, match=r"grad has shape \(3,\), and \(6,\) is needed"):
        guard(torch.ops.aten._pdist_backward, (torch.ones(3), points, 2.0, distances), {})
