"""Shapes that jaxtyping checks while the program runs."""

import torch
from jaxtyping import Float, Int, jaxtyped
from torch import Tensor

torch.manual_seed(0)


@jaxtyped(typechecker=None)
def attend(
    q: Float[Tensor, "b t d"], k: Float[Tensor, "b s d"], v: Float[Tensor, "b s e"]
) -> Float[Tensor, "b t e"]:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
out = attend(q, k, v)
print(out.shape, isinstance(out, Float[Tensor, "b t e"]), isinstance(out, Int[Tensor, "..."]))
print(
    isinstance(out, Float[Tensor, "2 3 6"]),
    isinstance(out, Float[Tensor, "2 3 7"]),
    f"{out.sum().item():.6f}",
)
