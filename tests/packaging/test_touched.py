"""Which tests ``make check`` runs."""

from __future__ import annotations

import pytest
from touched import folder_of, folders_of


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("djinn_lab/jobs/decision/decide.py", "jobs"),
        ("magics/source.py", "magics"),
        ("kernels/provisioner.py", "notebooks"),
        ("tests/pool/test_api.py", "pool"),
        ("release/archives.py", "packaging"),
        ("docs/pool.md", "docs"),
        ("README.md", "docs"),
        ("benchmarks/house.py", "benchmarks"),
        ("Makefile", None),
        ("djinn_lab/errors.py", None),
        ("tests/sweeps/models/__main__.py", None),
    ],
)
def test_a_file_belongs_to_the_folder_of_its_package(path: str, folder: str | None) -> None:
    assert folder_of(path) == folder


def test_each_folder_is_named_once() -> None:
    assert folders_of(["docs/pool.md", "README.md", "Makefile"]) == ["tests/docs"]
