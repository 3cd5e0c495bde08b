"""The wheel is what people install: everything that runs must be in it, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from djinn_lab.native import EXTENSIONS
from release.archives import repair
from release.dashboard import open_dashboard

ROOT = Path(__file__).parents[2]
PARTS = ("djinn_lab", "dashboard", "magics", "kernels", "pyproject.toml", "setup.py", "README.md", "LICENSE")
RELEASE = str(torch.__version__).partition("+")[0]


TRIVIAL = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_NAME() { return PyModule_Create(&definition); }
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of the sources, so that the checkout stays clean, and without the C++ extensions."""
    source = copy_sources(tmp_path_factory.mktemp("wheel"))
    return build_wheel(source, {"DJINN_LAB_NATIVE": "off"})


def copy_sources(place: Path) -> Path:
    source = place / "source"
    source.mkdir()
    for name in PARTS:
        origin = ROOT / name
        if origin.is_dir():
            shutil.copytree(origin, source / name, symlinks=True, ignore=_ignored)
        else:
            shutil.copy(origin, source / name)
    return source


def _ignored(folder: str, names: list[str]) -> list[str]:
    native = "built" if Path(folder).name == "native" else ""
    return [name for name in names if name in ("__pycache__", native)]


def build_wheel(source: Path, environment: dict[str, str]) -> zipfile.ZipFile:
    place = source.parent
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return zipfile.ZipFile(next(place.glob("*.whl")))


def test_every_module_of_the_checkout_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    expected = set()
    for name, folder in (("", "djinn_lab"), ("magics", "magics"), ("dashboard", "dashboard")):
        base = ROOT / folder
        for file in base.rglob("*.py"):
            if "__pycache__" not in file.parts:
                expected.add(str(Path("djinn_lab", name, file.relative_to(base))))
    linked = {path for path in expected if path.startswith(("djinn_lab/magics", "djinn_lab/dashboard"))}
    assert linked
    assert expected - set(wheel.namelist()) == set()


@pytest.mark.parametrize(
    "name",
    [
        "djinn_lab/py.typed",
        "djinn_lab/srg/operators.txt",
        "djinn_lab/kernels/djinn/kernel.json",
        "djinn_lab/dashboard/main.py",
    ],
)
def test_data_files_are_in_the_wheel(wheel: zipfile.ZipFile, name: str) -> None:
    assert name in wheel.namelist()
    assert wheel.getinfo(name).file_size > 0 or name.endswith("py.typed")


def test_static_files_of_the_dashboard_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    for file in (ROOT / "dashboard" / "static").rglob("*"):
        if file.is_file():
            assert (
                f"djinn_lab/dashboard/static/{file.relative_to(ROOT / 'dashboard' / 'static')}"
                in wheel.namelist()
            )


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    roots = {name.split("/")[0] for name in wheel.namelist()}
    assert {root for root in roots if not root.startswith("djinn_lab-")} == {"djinn_lab"}
    assert not [
        name for name in wheel.namelist() if "__pycache__" in name or name.startswith("djinn_lab/tests")
    ]


def test_the_kernel_is_installed_with_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("data/share/jupyter/kernels/djinn/kernel.json") for name in wheel.namelist())


def test_the_jupyterlab_extension_is_installed_with_the_wheel(wheel: zipfile.ZipFile) -> None:
    installed = [name.partition(".data/data/")[2] for name in wheel.namelist()]
    built = ROOT / "kernels" / "jupyterlab" / "built"
    for file in (built / "package.json", *(built / "static").iterdir()):
        assert f"share/jupyter/labextensions/djinn-lab/{file.relative_to(built)}" in installed
    assert "etc/jupyter/jupyter_server_config.d/djinn-lab.json" in installed


def test_the_command_is_declared(wheel: zipfile.ZipFile) -> None:
    entry_points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "djinn-lab = djinn_lab.cli:main" in wheel.read(entry_points).decode()


def test_wheel_holds_the_extensions_sources_and_is_for_every_platform(wheel: zipfile.ZipFile) -> None:
    sources = {
        str(file.relative_to(ROOT))
        for extension in EXTENSIONS.values()
        for file in (ROOT / "djinn_lab" / extension.folder).rglob("*")
        if file.suffix in (".cpp", ".h", ".hpp")
    }
    assert sources - set(wheel.namelist()) == set()
    assert not [name for name in wheel.namelist() if name.endswith((".so", ".o"))]
    assert str(wheel.filename).endswith("-py3-none-any.whl")


def test_panel_serves_the_dashboard_of_an_installed_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """By the command that the page gives, in a folder that has no ``dashboard``."""
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    wheel.extractall(installed)
    elsewhere.mkdir()
    commands = [[sys.executable, "-m", module] for module in ("djinn_lab.cli", "panel")]
    served = open_dashboard(*commands, {**os.environ, "PYTHONPATH": str(installed)}, elsewhere)
    assert served == installed / "djinn_lab" / "dashboard"


@pytest.fixture(scope="module")
def binary_wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """For two torches: the installed one's release as a CUDA build, and one for ROCm. The extensions are
    trivial, as the real ones take minutes."""
    source = copy_sources(tmp_path_factory.mktemp("binary-wheel"))
    for extension in EXTENSIONS.values():
        folder = source / "djinn_lab" / extension.folder
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "module.cpp").write_text(TRIVIAL.replace("NAME", extension.module))
    torches = [torch_called(version, source.parent) for version in (f"{RELEASE}+cu130", "2.99.0+rocm6.4")]
    return build_wheel(source, {"DJINN_LAB_NATIVE": "", "DJINN_LAB_TORCHES": os.pathsep.join(torches)})


def torch_called(version: str, place: Path) -> str:
    """Make a folder with the installed torch under another version, and return its name."""
    package = place / version / "torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text(f"__version__ = {version!r}\n")
    for name in ("lib", "include"):
        (package / name).symlink_to(Path(torch.__file__).parent / name)
    return str(package.parent)


def test_wheel_built_with_a_compiler_is_for_this_platform(binary_wheel: zipfile.ZipFile) -> None:
    assert not str(binary_wheel.filename).endswith("-any.whl")
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in str(binary_wheel.filename)


def test_wheel_holds_each_extension_for_each_torch(binary_wheel: zipfile.ZipFile) -> None:
    built = [Path(name).name for name in binary_wheel.namelist() if name.endswith(".so")]
    for extension in EXTENSIONS.values():
        files = [name for name in built if name.startswith(f"{extension.module}-")]
        if extension.needs_torch:
            assert len(files) == 2
            assert all(any(f"-torch{one}-" in name for name in files) for one in (RELEASE, "2.99.0+rocm6.4"))
        else:
            assert len(files) == 1


def test_extensions_of_an_installed_wheel_load(binary_wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Those for torch were built with a CUDA build's name, and load in a build for CPUs of the release."""
    binary_wheel.extractall(tmp_path)
    for name, extension in EXTENSIONS.items():
        release = f"*-torch{RELEASE}-*" if extension.needs_torch else "-*"
        [file] = tmp_path.glob(f"djinn_lab/native/built/{extension.module}{release}.so")
        code = f"from djinn_lab.native import load; print(load({name!r}).__file__)"
        environment = {**os.environ, "DJINN_LAB_NATIVE": ""}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert (done.stdout.strip(), done.stderr) == (str(file), "")


def test_wheel_for_torches_is_refused_where_a_folder_has_none(tmp_path: Path) -> None:
    environment = {**os.environ, "DJINN_LAB_TORCHES": str(tmp_path)}
    command = [sys.executable, str(ROOT / "setup.py"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode != 0
    assert f"no torch package in {tmp_path}" in done.stderr


def test_repaired_wheel_has_a_tag_that_registries_take(binary_wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """And no copy of a library of torch."""
    pytest.importorskip("auditwheel", reason="make install brings auditwheel")
    repaired = repair(Path(str(binary_wheel.filename)), tmp_path)
    assert "manylinux_2_" in repaired.name
    with zipfile.ZipFile(repaired) as held:
        names = held.namelist()
    assert not [name for name in names if name.startswith("djinn_lab.libs/")]
    assert {name for name in names if name.endswith(".so")} == {
        name for name in binary_wheel.namelist() if name.endswith(".so")
    }
