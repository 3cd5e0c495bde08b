"""What the pool answers to requests to compile without compiling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.region_compiler import REGION_BYTES_MAX, RegionCompiler
from djinn_lab.protocol.compiling import region_key
from djinn_lab.protocol.worker import CompileRegion, RegionCompiled

PLAN = DevicePlan("cpu:0", "cpu", memory_bytes=2**30, threads=1)


@pytest.fixture
def compiler() -> Iterator[RegionCompiler]:
    compiler = RegionCompiler()
    directory = compiler.directory_of(PLAN)
    assert directory.is_dir()
    yield compiler
    compiler.kill()
    assert not directory.parent.exists()


def answer(compiler: RegionCompiler, region: bytes) -> RegionCompiled:
    found: list[RegionCompiled] = []
    compiler.want(CompileRegion(region), PLAN, PLAN, found.append)
    (said,) = found
    assert said.region == region_key(region)
    return said


def test_machine_without_a_compiler_is_named(
    compiler: RegionCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert answer(compiler, b"region").problem == "this pool's machine has no C++ compiler (g++)"


def test_region_that_is_too_large_is_refused(
    compiler: RegionCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "true")
    assert answer(compiler, bytes(REGION_BYTES_MAX + 1)).problem == "it is too large"


def test_devices_with_other_numbers_of_threads_share_no_libraries(compiler: RegionCompiler) -> None:
    other = DevicePlan("cpu:1", "cpu", memory_bytes=2**30, threads=2)
    assert compiler.directory_of(PLAN) != compiler.directory_of(other)
