"""Loading: the right file or none, and a sentence that says why none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Workshop

from djinn_lab import native
from djinn_lab.native.building import exclusive, log_of
from djinn_lab.native.extensions import EXTENSIONS
from djinn_lab.native.loading import start_build
from djinn_lab.native.sources import file_name
from djinn_lab.native.target import BuildTarget, Torch


def test_load_gives_the_same_module_each_time(workshop: Workshop) -> None:
    workshop.build()
    loader = workshop.loader()
    assert loader.load("plain") is loader.load("plain")
    assert loader.why_missing("plain") == ""
    assert sys.modules.pop("djinn_test_plain") is loader.load("plain")


def test_load_of_a_file_of_older_sources_gives_none_and_starts_a_build(workshop: Workshop) -> None:
    workshop.build()
    workshop.write_answer(43)
    loader = workshop.loader()
    assert loader.load("plain") is None
    assert workshop.started == [workshop.built]
    assert loader.why_missing("plain") == (
        "The plain extension is being built in the background: the next session uses it."
    )


def test_file_name_changes_with_torch_python_variant_and_sources(workshop: Workshop) -> None:
    extension = replace(workshop.extensions["keyed"], needs_torch=True)
    target = BuildTarget("cpython-311", Path(), Torch(Path(), "2.13.0+cpu"))
    names = {
        file_name(extension, "one", target, workshop.root),
        file_name(extension, "two", target, workshop.root),
        file_name(extension, "one", replace(target, tag="cpython-312"), workshop.root),
        file_name(extension, "one", replace(target, torch=Torch(Path(), "2.13.1+cpu")), workshop.root),
        file_name(extension, "one", replace(target, torch=Torch(Path(), "2.13.0+rocm6.4")), workshop.root),
        file_name(extension, "one", replace(target, torch=Torch(Path(), "2.13.0a0+git12ab")), workshop.root),
    }
    (workshop.root / "keyed" / "answer.h").write_text("// edited\n")
    names.add(file_name(extension, "one", target, workshop.root))
    assert len(names) == 7


def test_file_name_is_the_same_for_builds_of_torch_for_cpus_and_for_cuda(workshop: Workshop) -> None:
    extension = replace(workshop.extensions["keyed"], needs_torch=True)
    names = {
        file_name(extension, "one", BuildTarget("cpython-311", Path(), Torch(Path(), version)), workshop.root)
        for version in ("2.13.0", "2.13.0+cpu", "2.13.0+cu126", "2.13.0+cu130")
    }
    assert len(names) == 1


def test_load_of_a_truncated_file_gives_none_and_the_cure(workshop: Workshop) -> None:
    file = workshop.build()
    file.write_bytes(file.read_bytes()[:100])
    loader = workshop.loader()
    assert loader.load("plain") is None
    assert "cannot be loaded" in loader.why_missing("plain")
    assert loader.why_missing("plain").endswith("python -m djinn_lab.native build --force.")


def test_load_without_a_compiler_gives_none_and_the_cure(workshop: Workshop) -> None:
    workshop.compiler = None
    assert workshop.load() is None
    assert workshop.started == []
    assert workshop.reason() == (
        "The plain extension is not built for these sources, and there is no C++ compiler:"
        " apt install g++, then python -m djinn_lab.native build."
    )


def test_load_without_python_headers_gives_none_and_the_cure(workshop: Workshop) -> None:
    workshop.target = replace(workshop.target, include=workshop.root)
    assert workshop.load() is None
    assert "Python.h is missing" in workshop.reason()


def test_load_without_torch_gives_none_and_the_cure(workshop: Workshop) -> None:
    workshop.extensions["plain"] = replace(workshop.extensions["plain"], needs_torch=True)
    workshop.target = replace(workshop.target, torch=None)
    assert workshop.load() is None
    assert "needs torch: pip install torch" in workshop.reason()


def test_load_under_another_torch_than_the_installed_one_gives_none(workshop: Workshop) -> None:
    workshop.extensions["plain"] = replace(workshop.extensions["plain"], needs_torch=True)
    assert workshop.target.torch is not None
    workshop.target = replace(workshop.target, torch=replace(workshop.target.torch, version="2.99.0"))
    extension = workshop.extensions["plain"]
    workshop.built.mkdir()
    (workshop.built / file_name(extension, "", workshop.target, workshop.root)).write_bytes(b"never opened")
    loader = workshop.loader()
    assert loader.load("plain") is None
    assert "is for torch 2.99.0, and torch 2." in loader.why_missing("plain")


def test_load_without_sources_gives_none(workshop: Workshop) -> None:
    assert workshop.load("absent") is None
    assert workshop.reason("absent") == "The absent extension is not part of this version of Djinn Lab."


def test_switch_turns_every_extension_off(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build()
    monkeypatch.setenv("DJINN_LAB_NATIVE", "off")
    assert workshop.load() is None
    assert workshop.reason() == "The plain extension is switched off: unset DJINN_LAB_NATIVE."
    assert all(native.load(name) is None for name in EXTENSIONS)
    monkeypatch.delenv("DJINN_LAB_NATIVE")
    assert workshop.load() is not None


def test_environment_variable_selects_the_variant(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build("keyed", "one")
    workshop.build("keyed", "two")
    for chosen, answer in (("", 1), ("one", 1), ("two", 2)):
        monkeypatch.setenv("KEYED_VARIANT", chosen)
        module = workshop.load("keyed")
        assert module is not None
        assert module.answer == answer
    monkeypatch.setenv("KEYED_VARIANT", "three")
    assert workshop.load("keyed") is None
    assert workshop.reason("keyed") == (
        "The keyed extension is not used: KEYED_VARIANT=three: expected one or two."
    )


def test_load_while_another_process_builds_starts_nothing(workshop: Workshop) -> None:
    workshop.built.mkdir()
    with exclusive(workshop.built):
        assert workshop.load() is None
        assert "is being built in the background" in workshop.reason()
    assert workshop.started == []


def test_load_after_a_failed_build_names_the_compilers_output_and_starts_nothing(workshop: Workshop) -> None:
    workshop.built.mkdir()
    extension = workshop.extensions["plain"]
    log = log_of(workshop.built / file_name(extension, "", workshop.target, workshop.root))
    log.write_text("error: expected ';'")
    assert workshop.load() is None
    assert workshop.started == []
    assert str(log) in workshop.reason()


def test_load_when_no_build_can_start_gives_none(workshop: Workshop) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError("read-only")

    loader = workshop.loader(refuse)
    assert loader.load("plain") is None
    assert "no build could be started (read-only)" in loader.why_missing("plain")


def test_background_build_returns_at_once_and_runs_the_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder is replaced by a program that notes its arguments once the test creates a file, and gives
    up when the test waits for it."""
    go_ahead = tmp_path / "go ahead"
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f'#!/bin/sh\nfor i in $(seq 200); do\n[ -e "{go_ahead}" ] && echo "$@" "nice $(nice)" && exit\n'
        "sleep 0.05\ndone\necho waited for\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    start_build(tmp_path / "built")
    go_ahead.touch()
    started = time.monotonic()
    log = tmp_path / "built" / "background.log"
    while not log.exists() or not log.read_text():
        assert time.monotonic() - started < 20
        time.sleep(0.05)
    words = log.read_text().split()
    assert words[:4] == ["-m", "djinn_lab.native", "build", "--optional"]
    assert int(words[-1]) >= 10


def test_background_build_is_used_by_the_next_session(workshop: Workshop) -> None:
    def build_now(folder: Path) -> None:
        workshop.build()

    first = workshop.loader(build_now)
    assert first.load("plain") is None
    assert first.load("plain") is None
    assert workshop.load() is not None


def test_loading_the_wire_extension_does_not_import_torch() -> None:
    code = "import sys; from djinn_lab.native import load, find; load('wire'); find('recorder')\n"
    code += "assert 'torch' not in sys.modules and 'platformdirs' not in sys.modules"
    environment = {**os.environ, "CXX": "no-such-compiler"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
