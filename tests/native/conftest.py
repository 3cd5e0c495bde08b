"""A package of its own with trivial extensions, so that tests build in a second what they load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from djinn_lab.native.building import Builder, WantedBuild
from djinn_lab.native.compiler import Compiler, find_compiler
from djinn_lab.native.extensions import NativeExtension
from djinn_lab.native.loading import Loader
from djinn_lab.native.places import BuildFolders
from djinn_lab.native.target import BuildTarget, this_target

SOURCE = """
#include <Python.h>
#include "answer.h"
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_NAME() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "answer", ANSWER);
  return module;
}
"""


@dataclass
class Workshop:
    """Extension ``plain`` has one variant, ``keyed`` two, chosen by ``KEYED_VARIANT``."""

    root: Path
    target: BuildTarget = field(default_factory=this_target)
    compiler: Compiler | None = field(default_factory=find_compiler)
    started: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.extensions = {
            "plain": NativeExtension("plain", "djinn_test_plain", "plain", needs_torch=False),
            "keyed": NativeExtension(
                "keyed",
                "djinn_test_keyed",
                "keyed",
                needs_torch=False,
                variants={"one": ("-DANSWER=1",), "two": ("-DANSWER=2",)},
                chosen_by="KEYED_VARIANT",
            ),
            "absent": NativeExtension("absent", "djinn_test_absent", "absent", needs_torch=False),
        }
        for name in ("plain", "keyed"):
            (self.root / name).mkdir(parents=True)
            source = SOURCE.replace("NAME", self.extensions[name].module)
            (self.root / name / "module.cpp").write_text(source)
            (self.root / name / "answer.h").write_text("")
        self.write_answer(42)

    @property
    def built(self) -> Path:
        return self.root / "built"

    def write_answer(self, value: int) -> None:
        (self.root / "plain" / "answer.h").write_text(f"#define ANSWER {value}\n")

    def builder(self) -> Builder:
        assert self.compiler is not None
        return Builder(self.root, self.built, self.target, self.compiler)

    def wanted(self, name: str = "plain", variant: str = "") -> WantedBuild:
        return WantedBuild(self.extensions[name], variant)

    def build(self, name: str = "plain", variant: str = "") -> Path:
        [file] = self.builder().build([self.wanted(name, variant)])
        return file

    def loader(self, start: Callable[[Path], None] | None = None) -> Loader:
        where = BuildFolders(self.root, (self.built,), self.built)
        begin = start or self.started.append
        return Loader(self.extensions, lambda: where, lambda: self.target, lambda: self.compiler, begin)

    def load(self, name: str = "plain") -> ModuleType | None:
        """As a new process would."""
        return self.loader().load(name)

    def reason(self, name: str = "plain") -> str:
        return self.loader().why_missing(name)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.delenv("DJINN_LAB_NATIVE", raising=False)
    return Workshop(tmp_path.resolve() / "package")
