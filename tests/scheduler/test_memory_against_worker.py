"""The planned memory is what a worker really uses, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch_recording import Recording

from djinn_lab.scheduler.memory_plan import plan_memory
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.values import SessionValues


def training_step() -> Program:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(32, 1, 8, 8), torch.zeros(32, dtype=torch.long)
    with Recording() as recording:
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    return recording.program(keep=(loss,), fetch=(loss,))


def attention_block() -> Program:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    with Recording() as recording:
        result = layer(torch.randn(2, 10, 32))
    return recording.program(keep=(result,))


def views_and_writes() -> Program:
    x = torch.randn(64, 64)
    with Recording() as recording, torch.no_grad():
        doubled = x * 2
        doubled[:8].add_(1)
        rows = doubled.t()[3:9]
        total = (torch.cat([rows, rows]) @ x).relu_().sum()
    return recording.program(keep=(rows,), fetch=(total,))


@pytest.mark.parametrize("make", [training_step, attention_block, views_and_writes])
def test_peak_and_rest_equal_the_workers(make: Callable[[], Program], tmp_path: Path) -> None:
    program = make()
    validate_program(program)
    worker = Interpreter(torch.device("cpu"), 2**30, tmp_path)
    values = worker.sessions["session"] = SessionValues(worker.memory)
    shared: dict[int, torch.Tensor] = {}
    for source in program.sources:
        meta = program.metas[source.meta]
        size = getattr(torch, meta.dtype).itemsize
        memory = shared.setdefault(
            source.storage, torch.zeros(meta.span_bytes // size, dtype=getattr(torch, meta.dtype))
        )
        values.put(source.value, memory.as_strided(meta.shape, meta.stride))
    outcome = worker.run("session", encode_program(program), {}, lambda: None, lambda done, total: None)
    assert outcome.failure is None
    srg = SRG.from_program(program)
    plan = plan_memory(srg, range(len(program.nodes)))
    assert plan.peak_bytes == worker.memory.peak_bytes
    only_fetched = sum(srg.values[value].span_bytes for value in set(program.fetch) - set(program.keep))
    assert plan.kept_bytes - only_fetched == worker.memory.used_bytes
