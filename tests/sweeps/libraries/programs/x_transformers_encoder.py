"""An encoder with relative positions, gated feed-forward and a mask."""

import torch
from x_transformers import Encoder, TransformerWrapper, ViTransformerWrapper

torch.manual_seed(1)
encoder = TransformerWrapper(
    num_tokens=40,
    max_seq_len=16,
    attn_layers=Encoder(dim=32, depth=2, heads=2, rel_pos_bias=True, ff_glu=True, attn_dropout=0.1),
)
tokens = torch.randint(0, 40, (3, 16))
mask = torch.arange(16)[None] < torch.tensor([[16], [9], [4]])
encoded = encoder(tokens, mask=mask, return_embeddings=True)
encoded[mask].square().mean().backward()
print(tuple(encoded.shape), f"{encoded.mean().item():.6f}")
vision = ViTransformerWrapper(
    image_size=16, patch_size=4, num_classes=3, attn_layers=Encoder(dim=32, depth=1, heads=2)
).eval()
with torch.no_grad():
    print(vision(torch.randn(2, 3, 16, 16)))
