"""Autocast by CUDA's rules: each op returns the dtypes that torch's own rules for CUDA give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_rules_kit import ONLY_ON_CUDA, differences, names_with_rules, ruled
from in_process import InProcessBackend, cell
from torch import nn
from torch.nn import functional as F

from djinn_lab.capture.recorders import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_every_op_with_a_rule_on_cuda_has_one(recorder: Recorder) -> None:
    with cell(recorder):
        torch.ones(1)
    assert ruled("AutocastIPU") == ruled("AutocastCUDA") - ONLY_ON_CUDA


def test_dtypes_are_those_of_cuda(recorder: Recorder) -> None:
    def run(function: Any, arguments: Any, dtype: torch.dtype) -> Any:
        with cell(recorder), torch.autocast("cuda", dtype):
            return function(*arguments[0], **arguments[1])

    names = names_with_rules()
    compared = {name: differences(name, run) for name in names}
    assert [name for name, (count, _) in compared.items() if not count] == []
    assert [each for _, found in compared.values() for each in found] == []
    assert len(names) > 100


def test_rules_in_python_are_the_same() -> None:
    kit = Path(__file__).with_name("cuda_rules_kit.py")
    done = subprocess.run([sys.executable, kit], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("compared "), done.stdout


def test_a_sum_that_is_too_large_for_half_precision_is_finite(recorder: Recorder) -> None:
    with cell(recorder), torch.autocast("cuda"):
        hidden = nn.Linear(8, 128).cuda()(torch.randn(1, 8, device="cuda"))
        total = (hidden * 0 + 300).pow(2).sum()
    assert hidden.dtype is torch.float16
    assert total.dtype is torch.float32
    assert total.item() == 128 * 300**2


def test_weights_are_cast_once(recorder: Recorder, backend: InProcessBackend) -> None:
    layer = nn.Linear(8, 8)
    with cell(recorder), torch.autocast("cuda"):
        x = torch.randn(2, 8, device="cuda")
        y = layer(layer(layer(x))).float().sum()
    y.item()
    ops = [program.templates[node.template].op for program in backend.programs for node in program.nodes]
    assert sum("_to_copy" in op for op in ops) <= 4  # weight, bias, x, and the result


def test_rules_end_with_the_scope_and_the_cell(recorder: Recorder) -> None:
    with cell(recorder):
        with torch.autocast("cuda"):
            assert torch.is_autocast_enabled()
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") is torch.float16
            assert not torch.is_autocast_enabled("cpu")
            with torch.autocast("cuda", enabled=False):
                assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float16
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
    assert not torch.is_autocast_enabled("ipu")
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32


def test_binary_cross_entropy_is_refused_as_on_cuda(recorder: Recorder) -> None:
    with cell(recorder), torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(torch.full((2,), 0.5), torch.ones(2))
