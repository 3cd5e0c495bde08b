"""The recorder on torch's spare backend key: a sample of the capture tests in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from djinn_lab.native.compiler import find_compiler
from djinn_lab.native.extensions import RECORDER_KEY

CAPTURE = Path(__file__).resolve().parents[1] / "capture"
SAMPLE = (
    "test_semantics.py",
    "test_fuzz_findings.py",
    "test_resizing.py",
    "test_composites.py",
    "test_conjugates.py",
    "test_layouts.py",
    "test_legacy_types.py",
    "test_nested_sessions.py",
    "test_scopes.py",
    "test_seen_by_others.py",
    "test_shadow.py",
    "test_found_outside.py::test_transformer_encoder_in_eval_mode_takes_the_fused_path",
    "test_found_outside.py::test_traced_and_exported_programs_compute_the_same",
    "test_found_outside.py::test_nested_and_sparse_tensors_meet_lazy_ones",
)
TIMEOUT_S = 300

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def built() -> None:
    if "SWEEP_RECORDERS" not in os.environ:
        pytest.skip("make sweep-recorders compiles this recorder")
    if find_compiler() is None:
        pytest.skip("no C++ compiler for the recorder on the backend key")
    _run("djinn_lab.native", "build", "recorder", "--variant", "backend")


@pytest.mark.usefixtures("built")
def test_recorder_on_the_backend_key_passes_a_sample_of_the_capture_tests() -> None:
    said = _run("pytest", "-q", "-k", "native", "-p", "no:cacheprovider", *_files())
    assert " passed" in said


def _files() -> list[str]:
    return [str(CAPTURE / name) for name in SAMPLE]


def _run(*module: str) -> str:
    environment = {**os.environ, RECORDER_KEY: "backend"}
    done = subprocess.run(
        [sys.executable, "-m", *module],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout
