"""A network of skorch inside scikit-learn's cross validation."""

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import cross_val_score
from skorch import NeuralNetClassifier

torch.manual_seed(0)
np.random.seed(0)
inputs, labels = make_classification(60, 8, random_state=0)
inputs, labels = inputs.astype(np.float32), labels.astype(np.int64)


class Net(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(width, 2)
        )

    def forward(self, x):
        return torch.softmax(self.layers(x), -1)


net = NeuralNetClassifier(Net, max_epochs=3, lr=0.1, verbose=0, batch_size=16)
net.fit(inputs, labels)
print([round(value, 6) for value in net.history[:, "train_loss"]])
print(net.predict(inputs[:10]), cross_val_score(net, inputs, labels, cv=2))
