"""Weights written and read with safetensors, tied ones among them."""

import torch
from safetensors.torch import load, load_model, save, save_file, save_model

torch.manual_seed(0)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 6)
        self.head = torch.nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


first, second = Tied(), Tied()
save_model(first, "tied.safetensors")
load_model(second, "tied.safetensors")
tokens = torch.arange(5)
print(torch.equal(first(tokens), second(tokens)))
state = {
    "a": torch.randn(3, 4),
    "b": torch.arange(6, dtype=torch.int16),
    "c": torch.randn(2).to(torch.bfloat16),
}
back = load(save(state))
print(
    {
        name: (tuple(value.shape), str(value.dtype), torch.equal(value, state[name]))
        for name, value in sorted(back.items())
    }
)
save_file(state, "state.safetensors")
