"""Structured matrices of linear-operator: products, solves and determinants."""

import torch
from linear_operator import operators
from linear_operator.operators import DiagLinearOperator, LowRankRootLinearOperator, ToeplitzLinearOperator

torch.manual_seed(0)
root = torch.randn(6, 2, requires_grad=True)
matrix = LowRankRootLinearOperator(root) + DiagLinearOperator(torch.full((6,), 0.5))
vector = torch.randn(6)
quadratic, determinant = matrix.inv_quad_logdet(vector[:, None], logdet=True)
(quadratic + determinant).backward()
print(f"{quadratic.item():.5f}", f"{determinant.item():.5f}", f"{root.grad.norm().item():.5f}")
print(matrix.detach().solve(vector))
toeplitz = ToeplitzLinearOperator(torch.tensor([2.0, 0.5, 0.1, 0.0]))
print(toeplitz @ torch.eye(4))
product = operators.KroneckerProductLinearOperator(toeplitz, toeplitz)
print(product.shape, f"{product.diagonal().sum().item():.3f}")
