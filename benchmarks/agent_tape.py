"""An agent's turns, recorded once: what a small language model does between two tool calls, as programs that
any number of sessions can send with tokens of their own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import blake3
import torch
from msgspec.structs import replace

from djinn_lab.capture.recorders import capturing, make_recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.srg.program import EncodedProgram, Program, Source, encode_program

HIDDEN, LAYERS, HEADS, VOCABULARY = 256, 4, 8, 2048
TOKEN_BYTES = LAYERS * 2 * HIDDEN * 4
"""Bytes of key-value cache by token: float32 keys and values of every layer."""


@dataclass(frozen=True)
class Shape:
    """``prompt``: tokens of the first turn; ``tool``: new tokens that each later turn starts with;
    ``decode``: greedy tokens at the end of every turn."""

    prompt: int
    tool: int
    decode: int
    turns: int

    @property
    def context(self) -> int:
        """Return the tokens in the cache at the end."""
        return self.prompt + (self.turns - 1) * self.tool + self.turns * self.decode


@dataclass(frozen=True)
class Tape:
    """``turns``: the segments of one session's cells, in order; the last of a turn fetches its logits.
    ``blobs``: weights by digest."""

    shape: Shape
    turns: tuple[tuple[Program, ...], ...]
    blobs: dict[str, bytes]

    def of_agent(self, seed: int) -> list[list[bytes]]:
        """Return the encoded turns with prompts and tool answers of this seed."""
        generator = torch.Generator().manual_seed(seed)
        return [[encode_program(_with_tokens(program, generator)) for program in turn] for turn in self.turns]


class _Tape:
    """A backend that runs nothing."""

    follow_max = 0

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.programs: list[Program] = []

    def stage(self, data: memoryview) -> str:
        digest = blake3.blake3(data).hexdigest()
        self.blobs[digest] = bytes(data)
        return digest

    def release(self, values: Sequence[int]) -> None:
        raise AssertionError("values are released with the next program")

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        self.programs.append(program.program)

    def is_done(self) -> bool:
        return True

    def result(self, cancel: bool = False) -> RunResult:
        return RunResult(len(self.programs[-1].nodes))


def record_tape(shape: Shape) -> Tape:
    """Record the turns of an agent whose model has random weights, from seed 0."""
    backend = _Tape()
    recorder = make_recorder(backend)
    model, cache = _model(), None
    token: torch.Tensor | None = None
    turns = []
    for turn in range(shape.turns):
        begun = len(backend.programs)
        new = torch.zeros(1, shape.prompt if turn == 0 else shape.tool, dtype=torch.int64)
        with torch.no_grad(), capturing(recorder, f"turn {turn + 1}", __file__):
            output = model(input_ids=new, cache=cache, use_cache=True)
            for _ in range(shape.decode):
                token = output.logits[:, -1:].argmax(-1)
                output = model(input_ids=token, cache=output.cache, use_cache=True)
            cache, logits = output.cache, output.logits
            recorder.finish("cell end")
        *parts, last = backend.programs[begun:]
        turns.append((*parts, replace(last, fetch=[*last.fetch, recorder.pool_id(logits)])))
    return Tape(shape, tuple(turns), backend.blobs)


def _with_tokens(program: Program, generator: torch.Generator) -> Program:
    return replace(program, sources=[_drawn(program, source, generator) for source in program.sources])


def _drawn(program: Program, source: Source, generator: torch.Generator) -> Source:
    """Inline token ids, replaced; positions and masks stay."""
    meta = program.metas[source.meta]
    if source.inline is None or meta.dtype != "int64" or len(meta.shape) != 2 or any(source.inline):
        return source
    drawn = torch.randint(0, VOCABULARY, meta.shape, generator=generator)
    return replace(source, inline=drawn.numpy().tobytes())


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LlamaConfig(
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            vocab_size=VOCABULARY,
            max_position_embeddings=4096,
        )
        model: Any = LlamaForCausalLM(config)
        return model.eval()
