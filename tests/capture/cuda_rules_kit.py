"""What autocast's rules for CUDA give, asked of torch with tensors that claim to be on CUDA and hold nothing
(``FakeTensorMode``), and a run of the rules in Python beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

LOW = (torch.bfloat16, torch.float16)


def ruled(key: str) -> set[str]:
    """Return the names of torch's ops that have a rule of autocast, with their overloads."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    found = {name[6:] for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}
    return {name for name in found if "name" not in name}  # named tensors, which older versions have


ONLY_ON_CUDA = {"_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose"}
BASES = {name.partition(".")[0] for name in ruled("AutocastCUDA") | ruled("AutocastCPU")}
NOT_ASKED = {
    *("geqrf", "linalg.lstsq", "nn.functional.ctc_loss", "sparse.mm"),  # torch cannot say without a GPU
    "grid_sampler_2d",  # the CPU has no kernel for half precision
    "pinverse",  # its kernel calls ops with rules, which a tensor without data does not show
}
REFUSED = {"nn.functional.binary_cross_entropy"}
SAMPLES_MAX = 3


def database() -> list[Any]:
    """Return torch's operator database, which takes seconds to load."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def names_with_rules() -> list[str]:
    """Return those of the operator database that CUDA or the CPU has a rule for."""
    found = {one.name for one in database() if {one.name.rpartition(".")[2], one.aten_name} & BASES}
    return sorted(found - NOT_ASKED - REFUSED)


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Switch torch's own on, without a GPU."""
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.clear_autocast_cache()


def dtypes(item: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor)]


def on_cuda(function: Any, arguments: Any, dtype: torch.dtype) -> list[torch.dtype] | str:
    """Return what the results are on CUDA, or the name of the error."""
    with FakeTensorMode():
        there = tree_map(
            lambda one: (
                torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda")
                if isinstance(one, torch.Tensor)
                else one
            ),
            arguments,
        )
        with cuda_autocast(dtype):
            try:
                return dtypes(function(*there[0], **there[1]))
            except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
                return type(error).__name__


def differences(name: str, run: Callable[[Any, Any, torch.dtype], Any]) -> tuple[int, list[str]]:
    """Return how many calls of the operator database were compared, and what was not as on CUDA. ``run``:
    calls a function with its arguments under autocast to a dtype."""
    compared, found = 0, []
    for one in (each for each in database() if each.name == name and torch.float32 in each.dtypes):
        for number, sample in enumerate(one.sample_inputs("cpu", torch.float32)):
            if number == SAMPLES_MAX:
                break
            arguments = ((sample.input, *sample.args), dict(sample.kwargs))
            dtype = LOW[number % 2]
            expected = on_cuda(one.op, arguments, dtype)
            if isinstance(expected, str):
                continue
            try:
                returned = dtypes(run(one.op, arguments, dtype))
            except (RuntimeError, NotImplementedError) as error:
                if "not implemented for" not in str(error):  # half precision on the CPU
                    raise
                continue
            compared += 1
            if returned != expected:
                found.append(f"{name} {number} {dtype}: {returned}, on CUDA {expected}")
    return compared, found


def by_rules_in_python() -> None:
    """Print what the rules in Python make otherwise than CUDA's; no native recorder may be loaded."""
    from djinn_lab.capture.python.autocast import cuda_rules
    from djinn_lab.capture.torch_functions.pool_devices import CUDA_RULES

    def run(function: Any, arguments: Any, dtype: torch.dtype) -> Any:
        torch.set_autocast_dtype(CUDA_RULES, dtype)
        torch.set_autocast_enabled(CUDA_RULES, True)
        try:
            with cuda_rules():
                return function(*arguments[0], **arguments[1])
        finally:
            torch.set_autocast_enabled(CUDA_RULES, False)

    warnings.simplefilter("ignore")
    total = 0
    for name in names_with_rules():
        compared, found = differences(name, run)
        total += compared
        print(*found, sep="\n", end="\n" if found else "")
    missing = ruled("AutocastCUDA") - ONLY_ON_CUDA - ruled("AutocastIPU")
    print("no rule for", *sorted(missing)) if missing else print("compared", total)


if __name__ == "__main__":
    by_rules_in_python()
