"""Rearrangements of einops as functions and as layers."""

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce

torch.manual_seed(0)
model = torch.nn.Sequential(
    Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
    EinMix("b t c_in -> b t c_out", weight_shape="c_in c_out", bias_shape="c_out", c_in=48, c_out=16),
    torch.nn.GELU(),
    Reduce("b t c -> b c", "mean"),
)
images = torch.randn(2, 3, 16, 16)
out = model(images)
out.sum().backward()
print(out.shape, f"{model[1].weight.grad.sum().item():.5f}")
packed, shapes = pack([torch.randn(2, 3), torch.randn(2, 4, 3)], "b * c")
first, second = unpack(packed, shapes, "b * c")
print(tuple(packed.shape), tuple(first.shape), tuple(second.shape))
print(reduce(images, "b c (h 2) (w 2) -> b c h w", "max").sum())
print(einsum(rearrange(out, "b c -> c b"), repeat(out, "b c -> b k c", k=3), "c b, d k c -> b d k").sum())
