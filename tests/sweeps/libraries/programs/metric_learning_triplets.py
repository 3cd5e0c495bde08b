"""Mined triplets and losses of pytorch-metric-learning."""

import torch
from pytorch_metric_learning import distances, losses, miners, regularizers

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
miner = miners.MultiSimilarityMiner()
criterion = losses.TripletMarginLoss(
    distance=distances.CosineSimilarity(), embedding_regularizer=regularizers.LpRegularizer()
)
for step in range(3):
    inputs, labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
    embedded = net(inputs)
    loss = criterion(embedded, labels, miner(embedded, labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}", miner.num_pos_pairs)
print(f"{losses.NTXentLoss()(net(inputs), labels).item():.6f}")
