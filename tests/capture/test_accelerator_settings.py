"""Numeric settings that only accelerators look at: they travel with a cell where the pool has some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from in_process import InProcessBackend, cell
from msgspec.structs import asdict
from torch.nn.attention import SDPBackend, sdpa_kernel

from djinn_lab.capture.recorders import Recorder
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.numerics import applied
from djinn_lab.srg.program import NumericSettings

CARD = PoolDevice("cuda:0", "a GPU", 2**33, "cuda")
CPU = PoolDevice("cpu:0", "in process", 2**33)
GPU = torch.device("cuda", 0)


@contextmanager
def switched(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def cudnn(**changed: bool) -> Iterator[None]:
    """As torch has it, but for what is changed. Some of torch's test helpers forbid plain assignments."""
    usual = {"enabled": True, "benchmark": False, "deterministic": False, "allow_tf32": True}
    with torch.backends.cudnn.flags(**usual | changed):
        yield


SETTINGS: dict[str, tuple[Callable[[], AbstractContextManager[None]], dict[str, object]]] = {
    "no TF32": (lambda: cudnn(allow_tf32=False), {"cudnn_tf32": False}),
    "benchmark": (lambda: cudnn(benchmark=True), {"cudnn_benchmark": True}),
    "deterministic": (
        lambda: cudnn(deterministic=True),
        {"cudnn_deterministic": True},
    ),
    "no cuDNN": (lambda: cudnn(enabled=False), {"cudnn": False}),
    "bfloat16": (
        lambda: switched(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        {"reduce_bfloat16": False},
    ),
    "float16": (
        lambda: switched(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        {"reduce_float16": False},
    ),
    "accumulation": (
        lambda: switched(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        {"accumulate_float16": True},
    ),
    "math alone": (
        lambda: sdpa_kernel(SDPBackend.MATH),
        {"flash_attention": False, "mem_efficient_attention": False, "cudnn_attention": False},
    ),
    "flash alone": (
        lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        {"math_attention": False, "mem_efficient_attention": False, "cudnn_attention": False},
    ),
}


def differing(settings: NumericSettings | None) -> dict[str, object]:
    """Return what differs from torch's defaults."""
    usual = asdict(NumericSettings())
    return {} if settings is None else {k: v for k, v in asdict(settings).items() if v != usual[k]}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_setting_goes_with_the_ops_that_it_was_set_for(
    recorder: Recorder, backend: InProcessBackend, name: str
) -> None:
    setting, expected = SETTINGS[name]
    recorder.devices = lambda: [CARD]
    with cell(recorder):
        before = torch.ones(3) + 1
        with setting():
            inside = torch.ones(3) + 2
        after = torch.ones(3) + 3
    assert [differing(program.settings) for program in backend.programs] == [{}, expected, {}]
    assert [one.tolist()[0] for one in (before, inside, after)] == [2.0, 3.0, 4.0]


def test_they_are_of_no_concern_to_a_pool_of_cpus(recorder: Recorder, backend: InProcessBackend) -> None:
    recorder.devices = lambda: [CPU]
    recorder.replayable = True
    with cell(recorder), cudnn(benchmark=True):
        _ = torch.ones(3) + 1
    assert [program.settings for program in backend.programs] == [None]


def test_a_session_that_wants_the_same_bits_says_so(recorder: Recorder, backend: InProcessBackend) -> None:
    recorder.devices = lambda: [CPU, CARD]
    recorder.replayable = True
    with cell(recorder):
        _ = torch.ones(3) + 1
    assert [differing(program.settings) for program in backend.programs] == [{"replayable": True}]


@pytest.mark.parametrize("name", list(SETTINGS))
def test_an_accelerator_applies_them_while_a_program_runs(name: str) -> None:
    setting, expected = SETTINGS[name]
    asked = NumericSettings(**expected)  # type: ignore[arg-type]

    def seen() -> tuple[object, ...]:
        cudnn, matmul, attention = torch.backends.cudnn, torch.backends.cuda.matmul, torch.backends.cuda
        return (
            *(cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
            *(matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction),
            *(matmul.allow_fp16_accumulation, attention.flash_sdp_enabled(), attention.math_sdp_enabled()),
            *(attention.mem_efficient_sdp_enabled(), attention.cudnn_sdp_enabled()),
        )

    before = seen()
    with setting():
        as_set_here = seen()
    with applied(asked, GPU):
        assert seen() == as_set_here
    assert seen() == before


@pytest.mark.parametrize(("wanted", "expected"), [(False, False), (True, True)])
def test_algorithms_are_deterministic_only_where_that_is_wanted(wanted: bool, expected: bool) -> None:
    with applied(NumericSettings(replayable=wanted), GPU):
        assert torch.are_deterministic_algorithms_enabled() is expected
        assert torch.is_deterministic_algorithms_warn_only_enabled() is expected
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_cpu_computes_as_it_does_whatever_is_wanted_of_accelerators() -> None:
    """The bits of a CPU are those of the notebook's."""
    with applied(NumericSettings(replayable=True), torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()
