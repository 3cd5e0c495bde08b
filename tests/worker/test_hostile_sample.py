"""Calls that ended the worker, or returned memory as it was, before guards; and what ops may write."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from sweeps.hostile.recorded import dispatched_calls
from sweeps.hostile.trial import OK, RAISED, attempt
from sweeps.operators.samples import operators

from djinn_lab.srg.ops import base_name
from djinn_lab.srg.program import Template
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker.templates import Call


class Case(NamedTuple):
    """``said``: in the refusal."""

    op: str
    args: list[Any]
    said: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never changed


def floats(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def numbers(*items: int) -> torch.Tensor:
    return torch.tensor(items)


FAR = 10**6
IMAGE, POOLED = floats(1, 2, 4, 4), floats(1, 2, 2, 2)
FAR_INDICES = torch.full((1, 2, 2, 2), FAR)

CASES = [
    Case("_adaptive_avg_pool2d_backward", [floats(3, 9, 2, 2), IMAGE], "grad_output"),
    Case("adaptive_max_pool2d_backward", [POOLED, IMAGE, FAR_INDICES], "indices"),
    Case(
        "max_pool2d_with_indices_backward",
        [POOLED, IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, FAR_INDICES],
        "indices",
    ),
    Case("reflection_pad2d_backward", [floats(1, 2, 4, 4), IMAGE, [1, 1, 1, 1]], "grad_output"),
    Case("replication_pad2d_backward", [floats(1, 2, 4, 4), IMAGE, [1, 1, 1, 1]], "grad_output"),
    Case(
        "grid_sampler_2d_backward",
        [floats(1), IMAGE, floats(1, 9, 9, 2), 0, 0, False, [True, True]],
        "grad_output",
    ),
    Case("narrow_copy", [floats(5, 5, 5), 1, 0, 2], "out", {"out": floats(1, 1, 1).expand(5, 2, 5)}),
    Case("avg_pool3d", [floats(1, 2, 4, 4, 4), [1]], "out", {"out": floats(1).expand(1, 2, 4, 4, 4)}),
    Case("triu", [floats(3, 3, 5, 5), 0], "matrices", {"out": floats(5, 3, 5, 3).transpose(0, -1)}),
    Case("rrelu_with_noise", [floats(200), floats(1).expand(200), 0.1, 0.3, True], "noise"),
    Case("native_batch_norm", [IMAGE, floats(1), None, None, None, True, 0.1, 1e-5], "weight"),
    Case(
        "native_batch_norm_backward",
        [floats(1), IMAGE, None, None, None, floats(2), floats(2), True, 1e-5, [True, False, False]],
        "grad_out",
    ),
    Case(
        "native_layer_norm_backward",
        [floats(1), floats(4, 8), [8], floats(4, 1), floats(4, 1), None, None, [True, False, False]],
        "grad_out",
    ),
    Case(
        "native_group_norm_backward",
        [IMAGE, IMAGE, floats(1), floats(1), None, 1, 2, 16, 2, [True] * 3],
        "mean",
    ),
    Case(
        "nll_loss_backward", [floats(), floats(3, 5), numbers(0, FAR, 2), None, 1, -100, floats()], "target"
    ),
    Case(
        "_embedding_bag_per_sample_weights_backward",
        [floats(2, 3), floats(5, 3), numbers(0, FAR), numbers(0, 1), numbers(0, 1), 0],
        "indices",
    ),
    Case("_ctc_loss", [floats(4, 1, 3), numbers(1, FAR).reshape(1, 2), [4], [2]], "targets"),
    Case("_ctc_loss", [floats(4, 1, 3), numbers(1, 2).reshape(1, 2), [FAR], [2]], "input length"),
    Case("_log_softmax_backward_data", [floats(4, 4), floats(1), 0, torch.float32], "output"),
    Case("_cdist_backward", [floats(9, 9), floats(2, 3), floats(2, 3), 2.0, floats(2, 2)], "grad"),
    Case("_pdist_backward", [floats(10), floats(2, 3), 2.0, floats(1)], "grad"),
    Case("_fft_r2c", [floats(8, 4), [-2], 0, True], "dim"),
    Case("_fft_c2r", [floats(8, 4).to(torch.complex64), [1], 0, FAR], "last_dim_size"),
    Case(
        "_segment_reduce_backward",
        [floats(1), floats(1), floats(4), "sum"],
        "lengths",
        {"lengths": numbers(FAR)},
    ),
    Case("lu_unpack", [floats(3, 3), torch.tensor([1, FAR, 3], dtype=torch.int32)], "row"),
    Case("lcm", [torch.tensor([-(2**63)]), numbers(-1)], "absolute"),
    Case("multi_margin_loss_backward", [floats(), floats(3, 5), numbers(0, FAR, 2), 1, 1.0], "target"),
    Case(
        "_scaled_dot_product_flash_attention_for_cpu",
        [floats(1, 2, 4, 8), floats(9, 2, 4, 8), floats(9, 2, 4, 8)],
        "key",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.said.replace(' ', '-')}")
def test_a_call_beyond_its_tensors_is_refused(case: Case) -> None:
    op = f"aten.{case.op}.{'out' if 'out' in case.kwargs else 'default'}"
    outcome, text = attempt(op, (case.args, case.kwargs))
    assert outcome == RAISED
    assert text.startswith(f"Refused: {op}: ")
    assert case.said in text


UNWRITTEN = [
    Case("_ctc_loss", [floats(4, 2, 3), numbers(1, 2, 1, 2).reshape(2, 2), [4, 2], [2, 1]], ""),
    Case("_embedding_bag", [floats(5, 5), numbers(0, 1, 4), numbers(0, 2), False, 0, False, None, True], ""),
    Case("mse_loss", [floats(500), floats(500), 1], ""),
    Case("col2im", [floats(2, 12, 16), [5, 5], [2, 2], [1, 1], [0, 0], [1, 1]], ""),
    Case("special_hermite_polynomial_h", [torch.tensor([float("nan")] * 64), numbers(3)], ""),
    Case("grid_sampler_2d", [IMAGE, floats(1, 9, 9, 2), 0, 0, False], ""),
]


@pytest.mark.parametrize("case", UNWRITTEN, ids=lambda case: case.op)
def test_no_memory_is_returned_as_it_was(case: Case) -> None:
    assert attempt(f"aten.{case.op}.default", (case.args, {})).outcome == OK


@pytest.mark.parametrize("op", ["aten.as_strided.default", "aten.as_strided_.default"])
@pytest.mark.parametrize("place", [([2, 2], [2**62, 2], 0), ([1], [1], 2**62)], ids=["stride", "offset"])
def test_a_view_whose_extent_overflows_is_refused_by_the_pool(op: str, place: tuple[Any, ...]) -> None:
    outcome, text = attempt(op, ([floats(2, 2), *place], {}))
    assert outcome == "refused by the pool"
    assert "beyond all memory" in text


def test_the_extension_leaves_guarded_ops_to_python() -> None:
    executor = find_executor()
    if executor is None:
        pytest.skip("the extension is not built")
    for op in {f"aten.{case.op}.default" for case in CASES}:
        assert Call(Template(op, [], {}), torch.device("cpu"), executor).native is None


OPERATORS = (
    "cumsum",
    "lu_unpack",
    "native_batch_norm",
    "nn.functional.embedding_bag",
    "nn.functional.mse_loss",
)


def test_valid_calls_are_not_refused_and_write_only_what_they_say() -> None:
    chosen = [op for op in operators() if op.name in OPERATORS]
    tried = set()
    for op, calls in dispatched_calls(chosen).items():
        for call in calls:
            outcome, text = attempt(op, call.arguments.tree())
            assert outcome in (OK, RAISED, "refused by the pool"), f"{op}: {outcome} {text}"
            assert not text.startswith("Refused"), text
            tried.add(base_name(op))
    assert {"native_batch_norm", "mkldnn_rnn_layer_backward", "_embedding_bag"} <= tried
