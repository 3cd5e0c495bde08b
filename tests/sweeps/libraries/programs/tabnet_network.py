"""The TabNet network alone, with its sparsity loss."""

import torch
from pytorch_tabnet.tab_network import TabNet

torch.manual_seed(2)
group = torch.eye(5)
model = TabNet(5, 3, n_d=4, n_a=4, n_steps=2, virtual_batch_size=8, group_attention_matrix=group)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
inputs, labels = torch.randn(16, 5), torch.randint(0, 3, (16,))
for step in range(3):
    logits, sparsity = model(inputs)
    loss = torch.nn.functional.cross_entropy(logits, labels) - 1e-3 * sparsity
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
