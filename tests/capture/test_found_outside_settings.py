"""Torch's random stream and numeric settings, used in a cell as other people's code uses them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from equality import check_cell
from in_process import InProcessBackend, cell
from torch import nn

from djinn_lab.capture.recorders import Recorder
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import NumericSettings, encode_program
from djinn_lab.srg.relative import Origin, to_relative, to_whole
from djinn_lab.worker.interpreter import ProgramRun


def _state() -> list[torch.Tensor]:
    first, state = torch.rand(1), torch.default_generator.get_state()
    second = torch.rand(1)
    torch.default_generator.set_state(state)
    return [first, state, second, torch.rand(1)]


def _seed() -> list[torch.Tensor]:
    first = torch.rand(3)
    torch.default_generator.manual_seed(7)
    second = torch.rand(3)
    torch.default_generator.manual_seed(7)
    return [first, second, torch.rand(3)]


def _copy() -> list[torch.Tensor]:
    torch.randn(2)
    return [torch.randn(3, generator=torch.default_generator.clone_state()), torch.randn(3)]


def _passed() -> list[torch.Tensor]:
    return [torch.randn(1), torch.randn(1, generator=torch.default_generator), torch.randn(1)]


def _named_before(
    generator: torch.Generator = torch.default_generator,
) -> list[torch.Tensor]:
    return [torch.randn(1), torch.randn(1, generator=generator), torch.randn(1)]


@pytest.mark.parametrize(
    "body", [_named_before, _state, _seed, _copy, _passed], ids=lambda body: body.__name__
)
def test_default_generator_used_directly_takes_effect(
    recorder: Recorder, body: Callable[[], list[torch.Tensor]]
) -> None:
    check_cell(recorder, body)


@pytest.mark.parametrize("drawn_before", [False, True])
def test_caught_remote_error_leaves_the_random_stream_where_eager_does(
    recorder: Recorder, drawn_before: bool
) -> None:
    def body() -> list[torch.Tensor]:
        kept = [torch.randn(2)] if drawn_before else []
        with pytest.raises(IndexError):
            nn.functional.embedding(torch.tensor([9]), torch.randn(3, 2)).sum().item()
        return [*kept[:0], torch.randn(2)]

    check_cell(recorder, body)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TF32 is set as well, which torch warns of
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@contextmanager
def _flushing() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def test_mkldnn_flags_reach_the_worker(recorder: Recorder) -> None:
    def body(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        with _without_mkldnn():
            off = layer(x)
        return [off, layer(x)]

    check_cell(recorder, body, nn.Conv2d(3, 8, 3), torch.randn(2, 3, 17, 17))


def test_flushed_denormals_reach_the_worker(recorder: Recorder) -> None:
    def product() -> torch.Tensor:
        return torch.full((2,), 1e-30) * torch.full((2,), 1e-10)

    def body() -> list[torch.Tensor]:
        with _flushing():
            flushed = product()
        return [flushed, product()]

    check_cell(recorder, body)


def test_deterministic_algorithms_reach_the_worker(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        with _deterministic():
            x = torch.randn(100, requires_grad=True)
            summed = torch.zeros(5).index_put((torch.randint(0, 5, (100,)),), x, accumulate=True)
            summed.sum().backward()
            return [torch.empty(2) * 1, torch.empty(2), summed, x]

    check_cell(recorder, body)


def test_op_without_a_deterministic_kernel_raises(recorder: Recorder) -> None:
    with pytest.raises(RuntimeError, match="deterministic"), _deterministic(), cell(recorder):
        kept = torch.zeros(5)
        kept.put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_reaches_the_worker(recorder: Recorder, dtype: torch.dtype) -> None:
    def body() -> list[Any]:
        before = torch.arange(3) * 1.5
        with _default_dtype(dtype):
            layer = nn.Linear(3, 3)
            numbers = [torch.arange(3) * 1.5, torch.arange(3) / 2, torch.tensor([True, False]) * 1.5]
            made = [torch.tensor(1.5), torch.ones(2) / 3, torch.sqrt(torch.tensor([2, 3])), torch.arange(3.0)]
            found = [*numbers, *made, layer(torch.randn(2, 3)), layer]
        return [before, *found, torch.arange(3) * 1.5]

    check_cell(recorder, body)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_matmul_precision_reaches_the_worker(
    recorder: Recorder, backend: InProcessBackend, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    execute, seen = ProgramRun.execute, []

    def watched(run: ProgramRun, *arguments: Any) -> Any:
        seen.append(torch.get_float32_matmul_precision())
        return execute(run, *arguments)

    monkeypatch.setattr(ProgramRun, "execute", watched)
    with cell(recorder):
        x = torch.ones(2, 2) * 2
        with _matmul_precision(precision):
            y = x @ x
        z = y @ x
    assert [program.settings for program in backend.programs] == [
        None,
        NumericSettings(matmul_precision=precision),
        None,
    ]
    assert seen == ["highest", precision, "highest"]
    assert torch.equal(z, torch.full((2, 2), 32.0))


def test_numeric_settings_are_sent_with_the_program_and_part_of_its_plan_key(
    recorder: Recorder, backend: InProcessBackend
) -> None:
    with cell(recorder):
        kept = [torch.ones(2) * 2]
        with _without_mkldnn():
            kept.append(torch.ones(2) * 2)
    assert [program.settings for program in backend.programs] == [None, NumericSettings(mkldnn=False)]
    encoded = encode_program(backend.programs[1])
    relative = to_relative(encoded, Origin())
    assert to_whole(relative.data, Origin()).data == encoded
    assert len({plan_key(encode_program(program)) for program in backend.programs}) == 2


def test_equal_numbers_of_other_types_are_other_numbers(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        ends = [torch.arange(end) for end in (1, 1.0, True, 2, 2.0)]
        return [
            *ends,
            torch.arange(0, 1),
            torch.arange(0.0, 1),
            torch.arange(-0.0, 1.0),
            torch.arange(0.0, 1.0),
        ]

    check_cell(recorder, body)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_complex_numbers_under_another_default_dtype(recorder: Recorder, dtype: torch.dtype) -> None:
    def body() -> list[torch.Tensor]:
        with _default_dtype(dtype):
            return [torch.full((2,), 1j), torch.full((2,), 1j, dtype=torch.complex128), torch.full((2,), 2.0)]

    check_cell(recorder, body)


def test_all_new_memory_is_filled_under_deterministic_algorithms(recorder: Recorder) -> None:
    def body() -> list[torch.Tensor]:
        with _deterministic():
            x = torch.ones(2, 3)
            made = [torch.empty(2), torch.empty_like(x), x.new_empty(2), torch.empty_strided((2,), (1,))]
            made += [x.new_empty_strided((2,), (1,)), torch.empty_permuted((2, 3), (1, 0))]
            return [one.isnan() for one in made]

    check_cell(recorder, body)
