"""Ops of their own kind."""

from __future__ import annotations

import torch

from djinn_lab.worker.guards.checks import CallArguments
from djinn_lab.worker.guards.losses import broadcast


def softmax_backward(given: CallArguments) -> None:
    given.expect_shape("output", given.grad_output.shape)
    given.expect_alike("grad_output", "output")
    rank = max(given.output.dim(), 1)
    given.expect(-rank <= given.dim < rank, f"dim {given.dim} does not exist")
    given.expect(
        given.input_dtype in (given.output.dtype, torch.float16), f"input_dtype is {given.input_dtype}"
    )


def fft(given: CallArguments) -> None:
    source, dims = given.self, given.dim
    rank = source.dim()
    given.expect(all(0 <= dim < rank for dim in dims), f"self has {rank} dimensions, and dim is {dims}")
    given.expect(len(set(dims)) == len(dims), "a dim occurs twice")
    given.expect(all(source.shape[dim] > 0 for dim in dims), "a dimension has no elements")
    if given.last_dim_size is not None:
        given.expect(bool(dims) and source.is_complex(), "self is not complex, or dim is empty")
        given.expect(given.last_dim_size > 0, f"last_dim_size is {given.last_dim_size}")
        given.expect(
            source.shape[dims[-1]] > given.last_dim_size // 2, "self is shorter than last_dim_size says"
        )
    if given.onesided is not None:
        given.expect(bool(dims) and source.is_floating_point(), "self is not real, or dim is empty")


def cdist_backward(given: CallArguments) -> None:
    one, other = given.x1, given.x2
    given.expect(min(one.dim(), other.dim()) >= 2, "x1 or x2 has less than two dimensions")
    given.expect(one.shape[-1] == other.shape[-1], "x1 and x2 have points of other dimensions")
    try:
        batch = torch.broadcast_shapes(one.shape[:-2], other.shape[:-2])
    except RuntimeError:
        given.refuse("x1 and x2 have other batches")
    for name in ("grad", "cdist"):
        given.expect_shape(name, (*batch, one.shape[-2], other.shape[-2]))
    given.expect_alike("x1", "x2", "grad", "cdist")


def pdist_backward(given: CallArguments) -> None:
    given.expect(given.self.dim() == 2, "self has not two dimensions")
    count = given.self.shape[0]
    given.expect_sizes(count * (count - 1) // 2, "grad", "pdist")
    given.expect_alike("self", "grad", "pdist")


def dirichlet_grad(given: CallArguments) -> None:
    for name in ("alpha", "total"):
        given.expect_shape(name, given.x.shape)
    given.expect_alike("x", "alpha", "total")


_SOBOL_BITS, _SOBOL_DIMENSIONS_MAX = 30, 21201


def sobol_state(given: CallArguments) -> None:
    dimension = given.dimension
    given.expect(0 < dimension <= _SOBOL_DIMENSIONS_MAX, f"dimension is {dimension}")
    given.expect_shape("self", (dimension, _SOBOL_BITS))
    given.expect(given.self.dtype is torch.int64, f"self is {given.self.dtype}")


def embedding_bag(given: CallArguments) -> None:
    given.expect(given.weight.dim() == 2, "weight has not two dimensions")
    _expect_bags(given)


def embedding_bag_backward(given: CallArguments) -> None:
    grad, indices = given.grad, given.indices
    weight = given.weight
    given.expect(grad.dim() == 2, "grad has not two dimensions")
    count = weight.shape[0] if weight is not None else given.num_weights
    given.expect(count >= 0 and not given.sparse, "num_weights is negative, or sparse is asked for")
    given.expect_indices("indices", count)
    _expect_bags(given)
    bags = grad.shape[0]
    if given.offset2bag.numel():
        given.expect_shape("offset2bag", indices.shape)
        given.expect_indices("offset2bag", bags)
    else:
        given.expect(given.offsets.numel() <= bags + 1, "grad has fewer bags than offsets")
    if weight is not None:
        given.expect(
            weight.dim() == 2 and weight.shape[1] == grad.shape[1], "grad has other columns than weight"
        )
        given.expect_alike("weight", "grad")
        return
    given.expect_elements(indices.numel(), "per_sample_weights")
    given.expect_alike("grad", "per_sample_weights")
    if given.bag_size is not None:
        given.expect_alike("indices", "offset2bag", "bag_size")
        given.expect(
            given.bag_size.numel() in ((bags,) if given.mode == _MEAN else (0, bags)),
            "bag_size is not as grad",
        )
    if given.mode == _MAX:
        given.expect_shape("maximum_indices", grad.shape)
        given.expect_indices("maximum_indices", count, -1)


_MEAN, _MAX = 1, 2


def _expect_bags(given: CallArguments) -> None:
    indices, offsets = given.indices, given.offsets
    given.expect(indices.dim() == offsets.dim() == 1, "indices or offsets have not one dimension")
    given.expect_indices("offsets", indices.numel() + 1)
    bags = offsets.numel() - bool(given.include_last_offset)
    given.expect(bags > 0 or not indices.numel(), "offsets are for no bag")
    given.expect(not offsets.numel() or bool(offsets[0] == 0), "the first offset is not 0")
    given.expect(bool((offsets[1:] >= offsets[:-1]).all()), "offsets are not in order")


def attention(given: CallArguments) -> None:
    query, key, value = given.query, given.key, given.value
    given.expect(
        query.dim() == key.dim() == value.dim() == 4, "not all of query, key and value have four dimensions"
    )
    batch, heads, length, size = query.shape
    given.expect(min(batch, heads, length, size, *key.shape[1:3]) > 0, "query or key is empty")
    groups = key.shape[1]
    given.expect(
        heads % groups == 0, f"query has {heads} heads, which is no multiple of the {groups} heads of key"
    )
    given.expect_shape("key", (batch, groups, key.shape[2], size))
    given.expect_shape("value", key.shape)
    given.expect_alike("query", "key", "value", "grad_out", "out")
    given.expect(query.is_floating_point(), f"query is {query.dtype}")
    mask = given.attn_mask
    if mask is not None:
        given.expect(mask.dim() in (2, 4), "attn_mask has neither two nor four dimensions")
        broadcast(given, "attn_mask", (batch, heads, length, key.shape[2]))
        given.expect(mask.dtype in (query.dtype, torch.float32, torch.bool), f"attn_mask is {mask.dtype}")
    if given.grad_out is not None:
        given.expect_shape("out", query.shape)
        given.expect_shape("grad_out", query.shape)
        given.expect_shape("logsumexp", (batch, heads, length))
        accumulated = torch.float64 if query.dtype is torch.float64 else torch.float32
        given.expect(given.logsumexp.dtype is accumulated, f"logsumexp is {given.logsumexp.dtype}")


def noise(given: CallArguments) -> None:
    """What a kernel writes beside its result, as many numbers as that has."""
    given.expect_elements(given.self.numel(), "noise")
    given.expect(given.noise.is_contiguous(), "noise is not contiguous")


def segments(given: CallArguments) -> None:
    data, axis = given.data, given.axis or 0
    given.expect(given.indices is None, "indices are not supported")
    counts = given.lengths if given.lengths is not None else given.offsets
    given.expect(counts is not None, "neither lengths nor offsets are given")
    name = "lengths" if given.lengths is not None else "offsets"
    given.expect(
        counts.dim() > 0 and axis == counts.dim() - 1 and axis < data.dim(),
        f"axis {axis} is not that of {name}",
    )
    given.expect(counts.shape[:-1] == data.shape[:axis], f"{name} are for another shape than data")
    size = data.shape[axis]
    given.expect_indices(name, size + 1)
    if name == "lengths":
        given.expect(bool((counts.sum(-1) <= size).all()), "lengths add up to more than the size of data")
        segment_count = counts.shape[-1]
    else:
        given.expect(bool((counts[..., 1:] >= counts[..., :-1]).all()), "offsets are not in order")
        segment_count = counts.shape[-1] - 1
        given.expect(segment_count >= 0, "offsets are empty")
    if given.grad is not None:
        shape = (*data.shape[:axis], segment_count, *data.shape[axis + 1 :])
        given.expect_shape("grad", shape)
        given.expect_shape("output", shape)
        given.expect_alike("data", "grad", "output")


def pivots(given: CallArguments) -> None:
    """Rows that an LU factorisation exchanged, counted from one."""
    factors = given.LU_data if given.LU_data is not None else given.LU
    name = "LU_pivots" if given.LU_pivots is not None else "pivots"
    found = getattr(given, name)
    given.expect(factors.dim() >= 2, "the matrices have less than two dimensions")
    given.expect(found.dtype is torch.int32, f"{name} are {found.dtype}")
    given.expect_shape(name, (*factors.shape[:-2], min(factors.shape[-2:])))
    if found.numel():
        least, most = torch.aminmax(found)
        given.expect(
            bool(least >= 1) and bool(most <= factors.shape[-2]), "pivots name a row that does not exist"
        )


def lcm(given: CallArguments) -> None:
    """The least integer has no absolute value, and dividing it by -1 ends the process."""
    for found in (given.self, given.other):
        if isinstance(found, torch.Tensor) and found.dtype in (torch.int64, torch.int32):
            least = torch.iinfo(found.dtype).min
            given.expect(not bool((found == least).any()), f"{least} has no absolute value in {found.dtype}")
