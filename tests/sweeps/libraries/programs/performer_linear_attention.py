"""Linear attention of performer-pytorch."""

import torch
from performer_pytorch import Performer, PerformerLM

torch.manual_seed(0)
encoder = Performer(dim=16, depth=1, heads=2, dim_head=8, nb_features=16)
out = encoder(torch.randn(2, 10, 16))
out.sum().backward()
print(tuple(out.shape), f"{out.std().item():.6f}")
model = PerformerLM(num_tokens=30, max_seq_len=16, dim=16, depth=1, heads=2, dim_head=8, nb_features=16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 30, (2, 16))
for step in range(2):
    loss = torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
