"""A decoder of x-transformers with rotary positions: training and generation."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=50,
        max_seq_len=32,
        attn_layers=Decoder(
            dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, use_rmsnorm=True
        ),
    )
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 50, (4, 20))
for step in range(3):
    loss = model(tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
print(model.generate(tokens[:1, :4], 6, temperature=0.0))
