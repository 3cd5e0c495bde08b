"""Ops that make a tensor of a given size: row-major, of the dtype that is named or torch's default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from djinn_lab.capture.shape_rules.layers import Answer, fresh
from djinn_lab.capture.values import Layout

_HALF = {torch.float16, torch.bfloat16}
_REAL = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def constant(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``empty``, ``zeros`` and ``ones``."""
    return _made(args[0], kwargs.get("dtype") or torch.get_default_dtype(), kwargs)


def filled(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``full``: without a dtype, that of the number."""
    default = torch.get_default_dtype()
    of_number = {float: default, bool: torch.bool, int: torch.int64}.get(type(args[1]))
    if of_number is not None:
        return _made(args[0], kwargs.get("dtype") or of_number, kwargs)
    plain = kwargs.get("dtype") is None and kwargs.get("layout") in (None, torch.strided)
    if plain and type(args[1]) is complex and default in _HALF and min(args[0], default=0) >= 0:
        return [fresh(torch.complex64, args[0])]  # torch's own shape rule makes halves of it
    return None


def drawn(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``rand`` and ``randn``, which refuse whole numbers."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return _made(args[0], dtype, kwargs) if dtype in _REAL else None


def made_like(inputs: Sequence[Layout], args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """``new_empty``, ``new_zeros``, ``new_ones`` and ``new_full``."""
    if len(inputs) != 1 or isinstance(args[-1], complex):
        return None
    return _made(args[1], kwargs.get("dtype") or inputs[0].dtype, kwargs)


def _made(size: Sequence[int], dtype: torch.dtype, kwargs: dict[str, Any]) -> Answer:
    if kwargs.get("layout") not in (None, torch.strided) or kwargs.get("pin_memory"):
        return None
    if kwargs.get("memory_format") is not None or (dtype not in _REAL and dtype not in _WHOLE):
        return None
    return [fresh(dtype, size)] if min(size, default=0) >= 0 else None
