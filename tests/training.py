"""A training program with dropout and an optimizer that writes in place."""

from __future__ import annotations

from functools import lru_cache

import torch
from programs import HOLE, Script, contiguous

from djinn_lab.srg.program import Program, TensorMeta


@lru_cache(maxsize=4)
def training(
    steps: int, size: int = 32, seed: int = 0, ballast_bytes: int = 0
) -> tuple[Program, tuple[int, ...]]:
    """Return a program that trains two layers with dropout and Adam, and its weights, which are kept and
    fetched. A step has 32 ops, most of which write in place. ``ballast_bytes``: memory that each step writes,
    which makes the program slow, and that is dropped at the end."""
    script = Script()
    made = torch.Generator().manual_seed(seed)
    first, second = (script.load(torch.randn(size, size, generator=made)) for _ in range(2))
    moments = {weight: [script.load(torch.zeros(size, size)) for _ in range(2)] for weight in (first, second)}
    count = ballast_bytes // 4
    ballast = script.op("aten.zeros.default", meta=contiguous(count), args=[[count]])
    for step in range(steps):
        if count:
            script.write("aten.add_.Tensor", ballast, scalars=(1.0,))
        batch = script.op("aten.rand_like.default", first)
        mask = script.op("aten.bernoulli.p", batch, args=[HOLE, 0.8])
        hidden = script.op("aten.relu.default", script.op("aten.mm.default", batch, first))
        dropped = script.op("aten.mul.Tensor", hidden, mask)
        out = script.op("aten.mm.default", dropped, second)
        slope = script.op("aten.mul.Tensor", out, scalars=(2.0 / size,))
        back = script.op("aten.mm.default", slope, _turned(script, second))
        back = script.write("aten.mul_.Tensor", back, mask)
        slopes = {
            first: script.op("aten.mm.default", _turned(script, batch), back),
            second: script.op("aten.mm.default", _turned(script, dropped), slope),
        }
        for weight, (mean, square) in moments.items():
            slope = slopes[weight]
            script.write("aten.mul_.Tensor", mean, scalars=(0.9,))
            script.write("aten.add_.Tensor", mean, slope)
            script.write("aten.mul_.Tensor", square, scalars=(0.99,))
            script.write("aten.addcmul_.default", square, slope, slope)
            root = script.op("aten.sqrt.default", square)
            script.write("aten.add_.Tensor", root, scalars=(1e-3,))
            script.write("aten.mul_.Tensor", mean, scalars=(1.0 - 1e-4 * (step % 7),))
            script.write("aten.addcdiv_.default", weight, mean, root)
            script.write("aten.mul_.Tensor", weight, scalars=(0.97,))
    total = script.op("aten.sum.default", ballast, meta=contiguous())
    script.write("aten.add_.Tensor", first, total)
    kept = (first, second, *moments[first], *moments[second])
    state = torch.Generator().manual_seed(seed).get_state().numpy().tobytes()
    return script.program(keep=kept, fetch=kept, rng_state=state), kept


def _turned(script: Script, value: int) -> int:
    meta = script.metas[value]
    return script.op(
        "aten.t.default", value, meta=TensorMeta(meta.dtype, meta.shape[::-1], meta.stride[::-1]), view=True
    )
