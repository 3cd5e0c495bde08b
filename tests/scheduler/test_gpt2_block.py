"""One GPT-2 block, recorded from real torch: prefill, then a decode step with its cache.

The transcript next to this file holds every figure. ``DJINN_REWRITE_GOLDEN=1`` rewrites it; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from torch_recording import Recording

from djinn_lab.scheduler import DeviceProfile, Scheduler
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.graph import SRG

GOLDEN = Path(__file__).with_name("gpt2_block.txt")
WIDTH, HEADS, PROMPT = 768, 12, 16


class Block(torch.nn.Module):
    """Pre-norm attention with a key-value cache, then the four times wider MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.project = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        query, key, value = (
            part.view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(WIDTH, dim=-1)
        )
        key, value = torch.cat([past[0], key], dim=-2), torch.cat([past[1], value], dim=-2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
        x = x + self.project(mixed.transpose(1, 2).reshape(1, -1, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh")), (key, value)


def transcript() -> tuple[str, SRG, int]:
    torch.manual_seed(0)
    block, empty = Block(), torch.empty(1, HEADS, 0, WIDTH // HEADS)
    prompt, token = torch.randn(1, PROMPT, WIDTH), torch.randn(1, 1, WIDTH)
    with FlopCounterMode(display=False) as counter, Recording() as recording, torch.no_grad():
        recording.module, recording.call = "Block", 1
        first, cache = block(prompt, (empty, empty))
        recording.call = 2
        second, cache = block(token, cache)
    srg = SRG.from_program(recording.program(keep=cache, fetch=(first, second)))
    device = DeviceProfile("cpu:0", "cpu", 2**30, DeviceCurves.of_rates(5e10, 1e10, 3e-6))
    schedule = Scheduler(devices=[device]).create_schedule(srg)
    lines = [
        f"{node.id:3} {node.op:60} {node.phase:8} {node.residency:10} {node.flops:>10} {node.bytes_read:>9} "
        f"{node.bytes_written:>7} {placed.live_bytes:>9} {placed.bound}"
        for node, placed in zip(srg.nodes, schedule.nodes, strict=True)
    ]
    return "\n".join([*lines, *schedule.explain(), ""]), srg, counter.get_total_flops()


def test_a_gpt2_block_is_annotated_and_scheduled_as_recorded() -> None:
    text, srg, counted = transcript()
    if os.environ.get("DJINN_REWRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    attention = sum(node.flops for node in srg.nodes if "scaled_dot_product" in node.op)
    assert srg.counted_flops == counted + attention, "torch does not count attention's CPU kernel"
    assert attention == 4 * WIDTH * (PROMPT * PROMPT + 1 * (PROMPT + 1))
    assert {node.phase for node in srg.nodes} == {"prefill", "decode"}
    assert srg.unknown_flops == ()
