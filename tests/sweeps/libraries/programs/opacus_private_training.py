"""Differentially private SGD of opacus."""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 8), torch.randint(0, 2, (32,)))
engine = PrivacyEngine(accountant="rdp")
model, optimizer, loader = engine.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(data, batch_size=8),
    noise_multiplier=1.1,
    max_grad_norm=1.0,
    poisson_sampling=False,
)
for inputs, labels in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print(f"{engine.get_epsilon(1e-5):.4f}")
