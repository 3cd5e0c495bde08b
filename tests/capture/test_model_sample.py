"""A fixed sample of ``make sweep-models``: one architecture of each kind, whole, beside eager torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SAMPLE = (
    ("causal", "llama"),
    ("causal", "gpt2"),
    ("causal", "mixtral"),
    ("causal", "mamba"),
    ("causal", "bloom"),
    ("seq2seq", "t5"),
    ("seq2seq", "bart"),
    ("masked", "bert"),
    ("vision", "vit"),
    ("vision", "resnet"),
    ("audio", "wav2vec2"),
    ("base", "clip_text_model"),
)
SECONDS_EACH = 100


@pytest.mark.processes
@pytest.mark.timeout(SECONDS_EACH * len(SAMPLE))
def test_architectures_equal_eager_bit_for_bit() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS / "capture")))}
    command = [sys.executable, str(TESTS / "sweeps" / "models" / "child.py"), str(SECONDS_EACH)]
    asked = "".join(json.dumps(item) + "\n" for item in SAMPLE)
    done = subprocess.run(command, input=asked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {item["model_type"]: item for item in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {name for _, name in SAMPLE}
    assert {name: item["outcome"] for name, item in found.items()} == dict.fromkeys(found, "equal"), found
    assert all(item["tasks"] for item in found.values())
