"""Building: what is compiled again, what is replaced, and builders that meet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Workshop

from djinn_lab.native.building import BuildFailed, exclusive, is_building, log_of
from djinn_lab.native.compiler import Compiler
from djinn_lab.native.places import BUILT, places

BUILD_PLAIN = """
from pathlib import Path
from djinn_lab.native.building import Builder, WantedBuild
from djinn_lab.native.compiler import find_compiler
from djinn_lab.native.extensions import NativeExtension
from djinn_lab.native.target import this_target
root = Path({root!r})
extension = NativeExtension("plain", "djinn_test_plain", "plain", needs_torch=False)
Builder(root, root / "built", this_target(), find_compiler()).build([WantedBuild(extension, "")], print)
"""


def test_build_makes_a_file_that_loads(workshop: Workshop) -> None:
    file = workshop.build()
    assert file.parent == workshop.built
    module = workshop.load()
    assert module is not None
    assert module.answer == 42


def test_build_leaves_a_file_that_is_there(workshop: Workshop) -> None:
    file = workshop.build()
    before = file.stat().st_mtime_ns
    assert workshop.build() == file
    assert file.stat().st_mtime_ns == before


def test_build_with_force_compiles_again(workshop: Workshop) -> None:
    file = workshop.build()
    before = file.stat().st_mtime_ns
    workshop.builder().build([workshop.wanted()], force=True)
    assert file.stat().st_mtime_ns > before


def test_edited_header_gives_another_file_and_removes_the_old_one(workshop: Workshop) -> None:
    first = workshop.build()
    workshop.write_answer(43)
    second = workshop.build()
    assert second != first
    assert list(workshop.built.glob("*.so")) == [second]
    assert len(list((workshop.built / "objects").glob("*.o"))) == 1


def test_an_edit_compiles_only_the_source_it_touches(workshop: Workshop) -> None:
    other = workshop.root / "plain" / "other.cpp"
    other.write_text("int djinn_test_other() { return 1; }\n")
    workshop.build()
    before = {path.name: path.stat().st_mtime_ns for path in (workshop.built / "objects").glob("*.o")}
    workshop.write_answer(44)
    workshop.build()
    after = {path.name: path.stat().st_mtime_ns for path in (workshop.built / "objects").glob("*.o")}
    [kept] = before.keys() & after.keys()
    assert "-other-" in kept
    assert before[kept] == after[kept]


def test_variants_stay_beside_each_other(workshop: Workshop) -> None:
    files = {workshop.build("keyed", variant) for variant in ("one", "two")}
    assert set(workshop.built.glob("*.so")) == files


def test_failing_source_is_reported_and_the_others_are_built(workshop: Workshop) -> None:
    (workshop.root / "plain" / "module.cpp").write_text("this is no C++\n")
    with pytest.raises(BuildFailed, match=r"plain: the compiler failed[\s\S]*no C\+\+"):
        workshop.builder().build([workshop.wanted(), workshop.wanted("keyed", "one")])
    [file] = workshop.built.glob("*.so")
    assert "keyed" in file.name
    assert not list(workshop.built.rglob("*.tmp"))


def test_failed_build_keeps_a_file_that_loads(workshop: Workshop) -> None:
    file = workshop.build()
    workshop.compiler = Compiler(("false",))
    with pytest.raises(BuildFailed):
        workshop.builder().build([workshop.wanted()], force=True)
    assert log_of(file).is_file()
    assert workshop.load() is not None


def test_leftovers_of_a_killed_builder_are_removed(workshop: Workshop) -> None:
    (workshop.built / "objects").mkdir(parents=True)
    left = workshop.built / "objects" / ".half.o.1.tmp"
    left.write_bytes(b"half")
    workshop.build()
    assert not left.exists()


def test_two_builders_at_once_build_one_file_that_loads(workshop: Workshop) -> None:
    code = BUILD_PLAIN.format(root=str(workshop.root))
    builders = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    printed = [builder.communicate()[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert sorted("plain: built" in text for text in printed) == [False, True]
    assert workshop.load() is not None


def test_is_building_is_true_while_the_lock_is_taken(workshop: Workshop) -> None:
    assert not is_building(workshop.built)
    workshop.built.mkdir()
    with exclusive(workshop.built):
        assert is_building(workshop.built)
    assert not is_building(workshop.built)


def test_checkout_builds_beside_the_package_and_installation_into_the_cache(tmp_path: Path) -> None:
    package = tmp_path / "djinn_lab"
    (package / "native").mkdir(parents=True)
    installed = places(package)
    assert installed.search == (package / BUILT, installed.into)
    assert not installed.into.is_relative_to(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    checkout = places(package)
    assert checkout.into == package / BUILT
