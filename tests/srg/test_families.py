"""What ops charge a device."""

from __future__ import annotations

import pytest
import torch
from torch_recording import Recording

from djinn_lab.srg.costs import node_charges, work_of
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.families import VIEW, FamilyWork


def charges_of(recording: Recording) -> list[FamilyWork]:
    return node_charges(recording.program())[0]


def test_products_are_distinguished_by_their_shorter_side() -> None:
    x, weight = torch.ones(1, 64), torch.ones(64, 32)
    with Recording() as recording:
        torch.mm(x, weight)
        torch.mm(torch.ones(128, 64), weight)
        torch.mm(torch.ones(64, 2), torch.ones(2, 64))
    one, many, outer = (charge for charge in charges_of(recording) if charge.family.startswith("matmul"))
    assert (one.family, one.work, one.lane) == ("matmul", 2 * 64 * 32, 1)
    assert (many.work, many.lane) == (2 * 128 * 64 * 32, 32)
    assert (outer.family, outer.lane) == ("matmul_short", 2)


def test_a_gradient_of_an_embedding_is_charged_for_its_rows_and_for_its_table() -> None:
    rows, table = torch.ones(100, 16), 5000
    with Recording() as recording:
        torch.ops.aten.embedding_dense_backward(rows, torch.zeros(100, dtype=torch.int64), table, -1, False)
    [charge] = [one for one in charges_of(recording) if one.family == "embedding_backward"]
    assert (charge.work, charge.lane) == (100, table * 16 * 4)


def test_only_the_first_node_of_an_op_is_first() -> None:
    x = torch.ones(8)
    with Recording() as recording:
        torch.tanh(x)
        torch.tanh(torch.tanh(x))
        x.unsqueeze(0)
    first = [charge.first for charge in charges_of(recording)]
    assert first == [True, False, False, True]


def test_views_cost_a_call() -> None:
    x = torch.ones(4, 4)
    with Recording() as recording:
        x.t()
    assert [charge.family for charge in charges_of(recording)] == [VIEW]


def test_an_op_of_no_family_is_priced_by_its_bytes_and_named() -> None:
    x = torch.ones(1000)
    with Recording() as recording:
        torch.ops.aten.special_hermite_polynomial_h.default(x, x)
    work = work_of(recording.program())
    assert work.unpriced == ("special_hermite_polynomial_h",)
    [(charge, count)] = work.charges
    assert (charge.work, count) == (3 * 4000, 1)


@pytest.mark.parametrize("steps", [1, 7])
def test_work_is_the_sum_of_its_nodes(steps: int) -> None:
    x = torch.ones(64, 64)
    with Recording() as recording:
        for _ in range(steps):
            x = torch.relu(x @ x)
    program = recording.program()
    curves = DeviceCurves.of_rates(1e9, 1e9, 1e-6)
    by_node = sum(curves.seconds(charge) for charge in node_charges(program)[0])
    assert work_of(program).seconds(curves) == pytest.approx(by_node)
    assert work_of(program).ops == 2 * steps
