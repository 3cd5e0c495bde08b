"""Region compilers of installed packages, on real pools: ones that work, and others that do not."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from example_package import EXAMPLES, import_from, install, write_package
from real_pool import PoolUnderTest

from djinn_lab.cli.app import main
from djinn_lab.client.session import Session

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

GROUP = "djinn_lab.region_compilers"
TOLERANCE = 1e-5
DECIDED_WITHIN_S = 280.0
"""The compiler lets all other processes of the machine go first."""
CODE = """
from pathlib import Path

import torch


class Exported:
    def compile(self, region, directory):
        inputs = tuple(torch.empty_strided(one.shape, one.stride()) for one in region.inputs)
        made = directory / "region.pt2"
        torch.export.save(torch.export.export(region.graph, inputs), made)
        return made

    def load(self, file, device):
        module = torch.export.load(file).module()
        return lambda inputs: module(*inputs)


class Nothing:
    def compile(self, region, directory):
        made = directory / "region"
        made.write_bytes(b"")
        return made


    def load(self, file, device):
        return lambda inputs: [torch.ones(300, 400, device=device)]


class Silent:
    def compile(self, region, directory):
        return directory


class Fails(Nothing):
    def compile(self, region, directory):
        raise LookupError("no kernel for tanh")


class Unloadable(Nothing):
    def load(self, file, device):
        raise LookupError("made by another version")


class Raises(Nothing):
    def load(self, file, device):
        return {}.__getitem__


class Elsewhere(Nothing):
    def compile(self, region, directory):
        place = directory / "region"
        place.symlink_to(__file__)
        return place


class Unready:
    def __init__(self):
        raise LookupError("no licence for this machine")
"""
OFFERED = ("exported", "nothing", "silent", "fails", "unloadable", "raises", "elsewhere", "unready")
SAID = {
    "nothing": "run op by op: the results of a region differ by ",
    "fails": "run op by op: LookupError: no kernel for tanh",
    "unloadable": "run op by op: its library cannot be loaded: made by another version",
    "elsewhere": "run op by op: ValueError: ",
    "raises": "run op by op: its compiled form failed: ",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("plugins")
    offers = {name: name.capitalize() for name in OFFERED}
    package = write_package(place, "region_compilers", CODE, GROUP, offers)
    return install(place, package, EXAMPLES / "region-compilers")


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_from(monkeypatch, site)


def computed(numbers: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        numbers = torch.tanh(numbers * numbers + 0.5)
    return numbers.t()


def decided(session: Session) -> str:
    """Run cells until one says what became of its region. All have the right numbers."""
    numbers = torch.randn(300, 400)
    deadline_s = time.monotonic() + DECIDED_WITHIN_S
    while True:
        with session.capture("repeated", tolerance=TOLERANCE) as cell:
            result = computed(numbers)
        torch.testing.assert_close(session.fetch(result), computed(numbers), rtol=TOLERANCE, atol=TOLERANCE)
        said = cell.report.compiled
        if "and within" in said or "op by op: " in said:
            return said
        assert time.monotonic() < deadline_s, said
        if "being compiled" in said:
            time.sleep(0.2)  # beside the compiler, which is niced


def test_pool_compiles_with_what_a_package_offers(tmp_path: Path) -> None:
    pool = PoolUnderTest(tmp_path, devices=f"{KIND}:1", region_compiler="exported")
    with pool, pool.session() as session:
        assert decided(session).startswith("12 ops in 1 region are compiled and within ")


@pytest.mark.parametrize("name", list(SAID))
def test_compiler_that_does_not_do_what_it_should_says_so_and_cells_run_op_by_op(
    tmp_path: Path, name: str
) -> None:
    pool = PoolUnderTest(tmp_path, devices=f"{KIND}:1", region_compiler=name)
    with pool, pool.session() as session:
        assert decided(session).startswith(SAID[name])


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
def test_example_compiles_with_openvino(tmp_path: Path) -> None:
    pool = PoolUnderTest(tmp_path, devices=f"{KIND}:1", region_compiler="openvino")
    with pool, pool.session() as session:
        assert decided(session).startswith("12 ops in 1 region are compiled and within ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exportd", "There is no region compiler 'exportd' (did you mean 'exported'?)."),
        ("inducter", "(did you mean 'inductor'?)"),
        ("cuda-graphs", "--region-compiler cuda-graphs: the pool has no GPU."),
        ("silent", "'silent' of region_compilers 1.0 has no method load(file, device)."),
        ("unready", "of region_compilers 1.0 cannot be made: LookupError: no licence for this machine"),
    ],
)
def test_pool_does_not_start_with_a_compiler_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as ended:
        main(["pool", "start", "--devices", "cpu:1", "--region-compiler", name])
    assert ended.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert message in said
    assert "inductor" in said or "choose another --region-compiler" in said


def test_package_that_takes_a_built_in_name_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    package = write_package(tmp_path, "own_inductor", CODE, GROUP, {"inductor": "Exported"})
    import_from(monkeypatch, install(tmp_path, package))
    with pytest.raises(SystemExit):
        main(["pool", "start", "--devices", "cpu:1", "--region-compiler", "inductor"])
    assert "own_inductor 1.0 offers the region compiler 'inductor', which is built in." in (
        capsys.readouterr().err
    )
