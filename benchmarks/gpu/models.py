"""Models with random weights, made from configurations."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from benchmarks.gpu.bench import GpuBench


def llama(bench: GpuBench) -> Any:
    """Return a model with the shapes of Llama-7B in bfloat16; small: two layers of 64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings: dict[str, Any] = small | {"vocab_size": 500} if bench.small else {}
    config = LlamaConfig(bos_token_id=0, eos_token_id=0, max_position_embeddings=2048, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            made: Any = LlamaForCausalLM(config)
            return made.eval()
        finally:
            torch.set_default_dtype(before)


def gpt2(bench: GpuBench, dropout: float) -> Any:
    """Return GPT-2 of 124 M parameters; small: two layers of 64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small: dict[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 500}
    drops: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = GPT2Config(bos_token_id=0, eos_token_id=0, **drops, **(small if bench.small else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        made: Any = GPT2LMHeadModel(config)
        return made.train()
