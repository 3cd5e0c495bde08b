"""Which architectures there are, and a small random model of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tiny_config import tiny
from transformers.models.auto import configuration_auto, modeling_auto


@dataclass(frozen=True)
class Family:
    """``mapping``: transformers' table of model types. ``auto``: the class that builds them."""

    mapping: str
    auto: str
    tasks: tuple[str, ...]


_GENERATE = ("greedy", "sampling", "beam search")
FAMILIES = {
    "causal": Family("CAUSAL_LM", "AutoModelForCausalLM", ("forward", "backward", *_GENERATE)),
    "seq2seq": Family("SEQ_TO_SEQ_CAUSAL_LM", "AutoModelForSeq2SeqLM", ("forward", "backward", *_GENERATE)),
    "masked": Family("MASKED_LM", "AutoModelForMaskedLM", ("forward", "backward")),
    "vision": Family("IMAGE_CLASSIFICATION", "AutoModelForImageClassification", ("forward", "backward")),
    "audio": Family("AUDIO_CLASSIFICATION", "AutoModelForAudioClassification", ("forward", "backward")),
    "ctc": Family("CTC", "AutoModelForCTC", ("forward",)),
    "speech": Family("SPEECH_SEQ_2_SEQ", "AutoModelForSpeechSeq2Seq", ("forward",)),
    "detection": Family("OBJECT_DETECTION", "AutoModelForObjectDetection", ("forward",)),
    "base": Family("", "AutoModel", ("forward",)),
}
"""``base``: every type that is in none of the others."""


def model_types(family: str) -> list[str]:
    if family != "base":
        return list(getattr(modeling_auto, f"MODEL_FOR_{FAMILIES[family].mapping}_MAPPING_NAMES"))
    elsewhere = {name for other in FAMILIES if other != "base" for name in model_types(other)}
    return [name for name in modeling_auto.MODEL_MAPPING_NAMES if name not in elsewhere]


def build(family: str, model_type: str) -> Any:
    """The same weights every time. Raises whatever transformers raises."""
    config = tiny(configuration_auto.CONFIG_MAPPING[model_type]())
    torch.manual_seed(0)
    return getattr(transformers, FAMILIES[family].auto).from_config(config).eval()


def candidate_inputs(model: Any) -> list[dict[str, torch.Tensor]]:
    """Inputs of the usual kinds, the likeliest first: eager torch says which ones the model takes."""
    config = model.config
    torch.manual_seed(1)
    ids = {"input_ids": torch.randint(10, 100, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    ids["attention_mask"][1, :2] = 0
    both = {**ids, "decoder_input_ids": torch.randint(10, 100, (2, 5))}
    decoder = {"decoder_input_ids": torch.randint(10, 100, (2, 5))}
    size = getattr(config, "image_size", None) or getattr(
        getattr(config, "vision_config", None), "image_size", 0
    )
    sides = [size] if isinstance(size, int) and size else [32, 64, 224]
    if isinstance(size, (list, tuple)):
        sides = [size[0]]
    channels = getattr(config, "num_channels", 3)
    images = [{"pixel_values": torch.randn(2, channels, side, side)} for side in sides]
    videos = [{"pixel_values": torch.randn(1, getattr(config, "num_frames", 4), 3, sides[0], sides[0])}]
    mel = getattr(config, "num_mel_bins", 16)
    frames = 2 * getattr(config, "max_source_positions", 32)
    features = [
        {"input_features": torch.randn(2, mel, frames)},
        {"input_features": torch.randn(2, 64, mel)},
        {"input_features": torch.randn(2, 1, 64, mel)},
    ]
    sound = [{"input_values": torch.randn(2, 4000)}, {"input_values": torch.randn(2, 64, mel)}]
    speech = [{**item, **decoder} for item in (*features, sound[0])]
    by_name: dict[str, list[dict[str, torch.Tensor]]] = {
        "input_ids": [ids, both, {"input_ids": ids["input_ids"]}],
        "pixel_values": [*images, *videos, *({**ids, **item} for item in images)],
        "input_values": [*sound, *speech],
        "input_features": [*features, *speech],
    }
    first = by_name.pop(model.main_input_name, [])
    if getattr(config, "is_encoder_decoder", False) and model.main_input_name == "input_ids":
        first = [both, ids]
    mixed = [{**ids, **item} for item in (*images, *features[:1])]
    return [*first, *mixed, *(item for items in by_name.values() for item in items)]
