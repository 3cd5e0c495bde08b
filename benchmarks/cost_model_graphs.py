"""Held-out programs for the cost model: small models in random configurations, by family.

A graph is a cell that builds its state once, and a cell that runs. No program here calibrates a device."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

Run = Callable[[], object]


class Graph(NamedTuple):
    """``build`` returns the cell that runs."""

    family: str
    name: str
    build: Callable[[], Run]


def held_out_graphs(seed: int, each: int) -> Iterator[Graph]:
    """Draw ``each`` graphs of every family."""
    chance = random.Random(seed)
    for family, draw in FAMILIES.items():
        for number in range(each):
            yield Graph(family, f"{family} {number}", draw(chance))


def _transformers() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    return transformers


# -- transformers --------------------------------------------------------------------------------------------


def _sizes(chance: random.Random) -> dict[str, int]:
    heads = chance.choice((2, 4, 8))
    width = heads * chance.choice((16, 32, 64))
    return {
        "heads": heads,
        "width": width,
        "layers": chance.randint(1, 4),
        "inner": width * chance.choice((2, 4)),
    }


def _decoder_config(kind: str, chance: random.Random) -> Any:
    transformers = _transformers()
    size, vocabulary = _sizes(chance), chance.choice((500, 2000, 8000))
    if kind == "gpt2":
        return transformers.GPT2Config(
            n_layer=size["layers"],
            n_head=size["heads"],
            n_embd=size["width"],
            n_inner=size["inner"],
            vocab_size=vocabulary,
            bos_token_id=1,
            eos_token_id=2,
        )
    made = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "gpt_neox": transformers.GPTNeoXConfig,
    }
    own = {} if kind == "gpt_neox" else {"num_key_value_heads": size["heads"]}
    return made[kind](
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        hidden_size=size["width"],
        intermediate_size=size["inner"],
        vocab_size=vocabulary,
        bos_token_id=1,
        eos_token_id=2,
        **own,
    )


DECODERS = ("gpt2", "llama", "qwen2", "gpt_neox")


def _prefill(chance: random.Random) -> Callable[[], Run]:
    config = _decoder_config(chance.choice(DECODERS), chance)
    batch, length = chance.choice((1, 2, 4)), chance.choice((8, 32, 100, 200))

    def build() -> Run:
        model = _transformers().AutoModelForCausalLM.from_config(config).eval()
        tokens = torch.randint(0, config.vocab_size, (batch, length))

        def run() -> object:
            with torch.no_grad():
                return model(tokens).logits[:, -1].argmax(-1)

        return run

    return build


def _decode(chance: random.Random) -> Callable[[], Run]:
    config = _decoder_config(chance.choice(DECODERS), chance)
    batch, length, new = chance.choice((1, 1, 4)), chance.choice((8, 32, 100)), chance.randint(4, 16)

    def build() -> Run:
        model = _transformers().AutoModelForCausalLM.from_config(config).eval()
        tokens = torch.randint(0, config.vocab_size, (batch, length))

        def run() -> object:
            with torch.no_grad():
                return model.generate(tokens, max_new_tokens=new, min_new_tokens=new, do_sample=False)

        return run

    return build


def _encoder(chance: random.Random) -> Callable[[], Run]:
    transformers = _transformers()
    size = _sizes(chance)
    kind = chance.choice((transformers.BertConfig, transformers.RobertaConfig, transformers.ElectraConfig))
    config = kind(
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        hidden_size=size["width"],
        intermediate_size=size["inner"],
        vocab_size=2000,
    )
    batch, length = chance.choice((1, 4, 16)), chance.choice((8, 32, 128))

    def build() -> Run:
        model = transformers.AutoModel.from_config(config).eval()
        tokens = torch.randint(3, 2000, (batch, length))

        def run() -> object:
            with torch.no_grad():
                return model(tokens).last_hidden_state.mean(1)

        return run

    return build


def _sequence_to_sequence(chance: random.Random) -> Callable[[], Run]:
    transformers = _transformers()
    size = _sizes(chance)
    config = transformers.T5Config(
        num_layers=size["layers"],
        num_heads=size["heads"],
        d_model=size["width"],
        d_kv=size["width"] // size["heads"],
        d_ff=size["inner"],
        vocab_size=2000,
    )
    batch, length = chance.choice((1, 4)), chance.choice((16, 64))

    def build() -> Run:
        model = transformers.T5ForConditionalGeneration(config).eval()
        tokens = torch.randint(0, 2000, (batch, length))

        def run() -> object:
            with torch.no_grad():
                return model(input_ids=tokens, decoder_input_ids=tokens[:, :8]).logits

        return run

    return build


def _training_transformer(chance: random.Random) -> Callable[[], Run]:
    config = _decoder_config(chance.choice(("gpt2", "llama")), chance)
    batch, length, steps = chance.choice((1, 4, 8)), chance.choice((16, 64)), chance.randint(1, 3)
    optimizer_name = chance.choice(("AdamW", "SGD", "Adam"))

    def build() -> Run:
        model = _transformers().AutoModelForCausalLM.from_config(config).train()
        tokens = torch.randint(0, config.vocab_size, (batch, length))
        return _steps(lambda: model(tokens, labels=tokens).loss, model, optimizer_name, steps)

    return build


def _steps(loss: Callable[[], torch.Tensor], model: nn.Module, optimizer_name: str, steps: int) -> Run:
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)

    def run() -> object:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return None

    return run


# -- vision --------------------------------------------------------------------------------------------------


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, groups=groups, bias=False)
        self.norms = nn.ModuleList((nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)))
        self.skip = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.skip(x))


def _convnet(chance: random.Random) -> tuple[Callable[[], nn.Module], tuple[int, ...]]:
    widths = [3] + [chance.choice((8, 16, 32, 64)) for _ in range(chance.randint(2, 4))]
    depthwise, pool = chance.random() < 0.3, chance.random() < 0.5
    side, batch = chance.choice((16, 32, 64)), chance.choice((2, 4, 8))

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inside, outside in pairwise(widths):
            layers.append(_Residual(inside, outside, 1 if pool else 2, outside if depthwise else 1))
            layers += [nn.MaxPool2d(2)] if pool else []
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))

    return make, (batch, 3, side, side)


def _vision(chance: random.Random) -> Callable[[], Run]:
    make, shape = _convnet(chance)
    return _forward(make, shape)


def _forward(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[], Run]:
    def build() -> Run:
        model, x = make().eval(), torch.randn(shape)

        def run() -> object:
            with torch.no_grad():
                return model(x)

        return run

    return build


def _vision_training(chance: random.Random) -> Callable[[], Run]:
    make, shape = _convnet(chance)
    optimizer_name, steps = chance.choice(("SGD", "Adam")), chance.randint(1, 2)

    def build() -> Run:
        model, x, labels = make().train(), torch.randn(shape), torch.randint(0, 10, shape[:1])
        return _steps(lambda: F.cross_entropy(model(x), labels), model, optimizer_name, steps)

    return build


def _vision_transformer(chance: random.Random) -> Callable[[], Run]:
    transformers = _transformers()
    size, batch = _sizes(chance), chance.choice((1, 4))
    config = transformers.ViTConfig(
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        hidden_size=size["width"],
        intermediate_size=size["inner"],
        image_size=chance.choice((32, 64)),
        patch_size=chance.choice((8, 16)),
    )

    def build() -> Run:
        model, x = (
            transformers.ViTModel(config).eval(),
            torch.randn(batch, 3, config.image_size, config.image_size),
        )

        def run() -> object:
            with torch.no_grad():
                return model(x).last_hidden_state

        return run

    return build


def _unet(chance: random.Random) -> Callable[[], Run]:
    from diffusers import UNet2DModel

    widths = tuple(chance.choice((16, 32, 64)) for _ in range(2))
    layers, side, batch = chance.randint(1, 2), chance.choice((16, 32)), chance.choice((1, 2))
    blocks = ("DownBlock2D", chance.choice(("DownBlock2D", "AttnDownBlock2D")))

    make: Any = UNet2DModel

    def build() -> Run:
        model = make(
            sample_size=side,
            block_out_channels=widths,
            layers_per_block=layers,
            down_block_types=blocks,
            up_block_types=tuple(block.replace("Down", "Up") for block in reversed(blocks)),
            norm_num_groups=8,
        ).eval()
        x, step = torch.randn(batch, 3, side, side), torch.tensor(10)

        def run() -> object:
            with torch.no_grad():
                return model(x, step).sample

        return run

    return build


# -- tables and sequences ------------------------------------------------------------------------------------


def _layers(chance: random.Random) -> tuple[Callable[[], nn.Module], int]:
    widths = [chance.choice((8, 64, 256, 768)) for _ in range(chance.randint(2, 5))]
    activation = chance.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh))
    normed, dropped = chance.random() < 0.4, chance.random() < 0.4

    def make() -> nn.Module:
        found: list[nn.Module] = []
        for inside, outside in pairwise(widths):
            found += [nn.Linear(inside, outside), *([nn.LayerNorm(outside)] if normed else []), activation()]
            found += [nn.Dropout(0.1)] if dropped else []
        return nn.Sequential(*found, nn.Linear(widths[-1], 4))

    return make, widths[0]


def _table(chance: random.Random) -> Callable[[], Run]:
    make, width = _layers(chance)
    return _forward(make, (chance.choice((1, 16, 256, 1024)), width))


def _table_training(chance: random.Random) -> Callable[[], Run]:
    make, width = _layers(chance)
    rows, steps = chance.choice((16, 256, 1024)), chance.randint(1, 5)
    optimizer_name = chance.choice(("Adam", "AdamW", "SGD", "RMSprop"))

    def build() -> Run:
        model, x, y = make().train(), torch.randn(rows, width), torch.randn(rows, 4)
        return _steps(lambda: F.mse_loss(model(x), y), model, optimizer_name, steps)

    return build


class _Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.RNNBase], vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = kind(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.cell(self.embedding(tokens))[0])
        return found


def _recurrent(chance: random.Random) -> Callable[[], Run]:
    kind, width = chance.choice((nn.LSTM, nn.LSTM, nn.GRU)), chance.choice((16, 64, 128))
    layers, batch, length = chance.randint(1, 2), chance.choice((1, 4, 16)), chance.choice((8, 32))
    trained = chance.random() < 0.5

    def build() -> Run:
        model, tokens = _Recurrent(kind, 200, width, layers), torch.randint(0, 200, (batch, length))
        if trained:
            return _steps(
                lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()), model, "Adam", 1
            )

        def run() -> object:
            with torch.no_grad():
                return model(tokens)

        return run

    return build


FAMILIES: dict[str, Callable[[random.Random], Callable[[], Run]]] = {
    "prefill": _prefill,
    "decode": _decode,
    "encoder": _encoder,
    "seq2seq": _sequence_to_sequence,
    "transformer training": _training_transformer,
    "convnet": _vision,
    "convnet training": _vision_training,
    "ViT": _vision_transformer,
    "UNet": _unet,
    "MLP": _table,
    "MLP training": _table_training,
    "recurrent": _recurrent,
}
