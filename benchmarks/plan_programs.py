"""Programs of GPT-2 as the recorder sends them, from a configuration and without running anything."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from djinn_lab.capture.recorders import capturing, make_recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import EncodedProgram, Program

PROMPT = 24


class _Unrun:
    """A backend that keeps programs, and answers as if each had run."""

    follow_max = 0

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self._blobs = 0

    def stage(self, data: memoryview) -> str:
        self._blobs += 1
        return f"{self._blobs:064x}"

    def release(self, values: Sequence[int]) -> None:
        """Nothing is held."""

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        self.programs.append(program.program)

    def is_done(self) -> bool:
        return True

    def result(self, cancel: bool = False) -> RunResult:
        return RunResult(len(self.programs[-1].nodes))


def recorded(cell: Callable[[], Any], cells: int) -> list[Program]:
    """Run a cell so many times under capture; return the program of each. Its last results stay until the
    next."""
    backend = _Unrun()
    recorder = make_recorder(backend)
    found: list[Program] = []
    for _ in range(cells):
        backend.programs.clear()
        with capturing(recorder, "benchmark", __file__), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = cell()
            recorder.finish("cell end")
        found.append(merge_programs(backend.programs))
        del result
    return found


class Gpt2:
    """GPT-2 with 12 layers, by its configuration, for one recorder. ``tiny``: as many nodes, with small
    tensors."""

    def __init__(self, tiny: bool) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(n_embd=48, bos_token_id=0, eos_token_id=0) if tiny else GPT2Config()
        model: Any = GPT2LMHeadModel(config)
        self._model = model.eval()
        self._tokens = torch.zeros(1, PROMPT, dtype=torch.long)
        self._past: Any = None

    def forward(self) -> torch.Tensor:
        """All tokens of the prompt at once."""
        with torch.no_grad():
            logits: torch.Tensor = self._model(self._tokens, use_cache=True).logits
            return logits

    def decode(self, steps: int = 1) -> torch.Tensor:
        """The next tokens, with a key-value cache that grows; the prompt first."""
        with torch.no_grad():
            for _ in range(steps):
                tokens = self._tokens if self._past is None else self._tokens[:, :1]
                found = self._model(tokens, use_cache=True, past_key_values=self._past)
                self._past = found.past_key_values
            logits: torch.Tensor = found.logits
            return logits
