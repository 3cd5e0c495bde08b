"""Valid calls of allowed overloads, taken from torch's operator database: each is run forward and backward,
in place and with ``out=``, under a mode that sees what is dispatched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from sweeps.operators.samples import Copy, operators, samples, tensors_of
from sweeps.operators.variants import Variant, gradients, variants
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from djinn_lab.srg.ops import allowed_ops, parameters

CALLS_MAX = 6
SAMPLES_MAX = 6
BYTES_MAX = 200_000
_LEAVES = (
    *(torch.Tensor, torch.dtype, torch.layout, torch.device, torch.memory_format),
    *(bool, int, float, complex, str, type(None)),
)


class Recorded(NamedTuple):
    """``arguments.tree()``: ``(args, kwargs)`` on memory of its own."""

    op: str
    arguments: Copy


class _Record(TorchDispatchMode):
    def __init__(self, wanted: frozenset[str]) -> None:
        super().__init__()
        self.calls: dict[str, list[Recorded]] = {op: [] for op in wanted}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = self.calls.get(str(func))
        given = list(args), {name: item for name, item in (kwargs or {}).items() if name != "pin_memory"}
        if found is not None and len(found) < CALLS_MAX and _is_small(given):
            found.append(Recorded(str(func), Copy(Copy(given).tree())))  # no later call resizes those
        return func(*args, **(kwargs or {}))


def _is_small(given: Any) -> bool:
    leaves = tree_leaves(given)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return all(isinstance(leaf, _LEAVES) for leaf in leaves) and all(
        tensor.layout is torch.strided and tensor.untyped_storage().nbytes() <= BYTES_MAX
        for tensor in tensors
    )


def recorded_calls(only: frozenset[str], show: Callable[[str], None]) -> dict[str, list[Recorded]]:
    """By overload. Those that the database never calls are derived from their siblings, or left out."""
    calls = dispatched_calls(operators(), show)
    derived = {op: _derived(op, calls) for op in allowed_ops() if op not in calls}
    calls.update({op: found for op, found in derived.items() if found})
    return {op: found for op, found in calls.items() if not only or op in only}


def dispatched_calls(
    chosen: Sequence[Any], show: Callable[[str], None] = lambda text: None, samples_max: int = SAMPLES_MAX
) -> dict[str, list[Recorded]]:
    """The calls that some operators of the database come to, and some modules."""
    record = _Record(allowed_ops())
    for position, op in enumerate(chosen, 1):
        show(f"recording {position}/{len(chosen)} {op.formatted_name}")
        for variant in _called(op, samples_max):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    _run(variant, record)
                except Exception:  # noqa: BLE001 - torch's database holds samples that torch refuses
                    continue
    for module, source in _modules():
        with record:
            _sum(module(source)).backward()
    return {op: found for op, found in record.calls.items() if found}


def _called(op: Any, samples_max: int) -> Iterator[Variant]:
    dtypes = [d for d in (torch.float32, torch.int64) if d in op.supported_dtypes("cpu")]
    for dtype in dtypes:
        every = list(samples(op, dtype))
        for sample in every[:: max(1, len(every) // samples_max)][:samples_max]:
            yield from (
                one for one in variants(op, sample, ("call", "inplace", "out")) if "," not in one.name
            )
    if op.supports_autograd and torch.float32 in dtypes:
        every = list(samples(op, torch.float32, gradients=True))
        for sample in every[:: max(1, len(every) // samples_max)][:samples_max]:
            found = gradients(op, sample)
            if found is not None:
                yield found


def _modules() -> Iterator[tuple[Callable[[torch.Tensor], Any], torch.Tensor]]:
    """What the database lacks, or has only for other devices."""
    torch.manual_seed(1)
    table = torch.randn(10, 3, requires_grad=True)
    for options in ({}, {"bias": False}, {"bidirectional": True, "num_layers": 2}):
        yield torch.nn.LSTM(4, 3, **options), torch.randn(5, 2, 4)
    for mode in ("sum", "mean", "max"):
        bag = torch.nn.EmbeddingBag(10, 3, mode=mode, _weight=table)
        yield bag, torch.tensor([[1, 2], [4, 4], [9, 0]])
    yield torch.nn.GRU(4, 3), torch.randn(5, 2, 4)
    yield torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)), torch.randn(2, 4)
    functional, deep = torch.nn.functional, torch.randn(1, 2, 4, 4, 4, requires_grad=True)
    yield torch.nn.MaxPool3d(2), deep
    yield torch.nn.ReflectionPad3d(1), deep
    yield torch.nn.ReplicationPad3d(1), deep
    yield lambda given: functional.grid_sample(given, torch.rand(1, 2, 2, 2, 3), align_corners=False), deep
    yield lambda given: functional.nll_loss(given, torch.tensor([[[1, 0], [0, 1]]])), deep[..., :2, :2, 0]
    yield lambda given: torch.segment_reduce(given, "sum", lengths=torch.tensor([1, 3])), deep[0, 0]
    yield lambda given: torch._dirichlet_grad(given.exp(), given.exp(), given.exp()), deep[0, 0].detach()
    source, scale = torch.randn(4, 3, requires_grad=True), torch.randn(4, 1, requires_grad=True)
    yield lambda given: torch._weight_norm_interface(given, scale, 0), source


def _sum(returned: Any) -> torch.Tensor:
    sums = [tensor.sum() for tensor in tensors_of(returned) if tensor.requires_grad]
    return torch.stack([torch.zeros((), requires_grad=True), *sums]).sum()


def _run(variant: Variant, record: _Record) -> None:
    tree = Copy(variant.tree).tree()
    if variant.name == "gradients":
        with record:
            variant.call(tree)
        return
    with torch.inference_mode():  # composite ops are dispatched as they are
        tree = Copy(variant.tree).tree(torch.clone)
        with record:
            variant.call(tree)


def _derived(op: str, calls: Mapping[str, list[Recorded]]) -> list[Recorded]:
    """Calls of an overload with ``out=``, or in place, from those of the one that returns new tensors."""
    _, name, overload = op.split(".")
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    taken = _kinds(op)[: sum(not argument.is_out for argument in schema.arguments)]
    wanted = name.removesuffix("_") if not overload.endswith("out") else name
    for sibling, found in calls.items():
        if sibling.split(".")[1] == wanted and _kinds(sibling) == taken:
            function = getattr(getattr(torch.ops.aten, wanted), sibling.split(".")[2])
            made = [_with_outs(op, schema, function, one) for one in found]
            return [one for one in made if one is not None]
    return []


def _kinds(op: str) -> list[tuple[str, str, int | None]]:
    return [(one.name, one.kind, one.items) for one in parameters(op)]


def _with_outs(op: str, schema: Any, function: Any, call: Recorded) -> Recorded | None:
    args, kwargs = call.arguments.tree()
    outs = [argument.name for argument in schema.arguments if argument.is_out]
    if outs:
        try:
            returned = function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - recorded calls that raise are none to derive others from
            return None
        results = [item.clone() for item in tensors_of(returned)]
        if len(outs) == 1 and schema.arguments[-1].type.kind() == "ListType":
            kwargs[outs[0]] = results
        else:
            kwargs |= dict(zip(outs, results, strict=False))
        args, kwargs = call.arguments.tree()[0], kwargs
    return Recorded(op, Copy((args, kwargs)))
