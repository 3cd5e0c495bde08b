"""What torch answers about CUDA while a cell is captured.

``cuda`` means the pool and lazy tensors claim to be on the CPU, so everything that a device *type* switches
on (autocast, loss scaling, generators) is switched on for the CPU instead, with the settings that ``cuda``
stands for. Calls that only a local GPU could answer get the harmless answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from djinn_lab.capture.replaced import all_replaced

_AUTOCAST: Any = torch.amp.autocast_mode.autocast
_SCALER: Any = torch.amp.GradScaler
_GENERATOR: Any = torch._C.Generator


def is_pool(device: Any) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


class _GeneratorType(type(_GENERATOR)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is _GENERATOR

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return _GENERATOR("cpu" if is_pool(device) else device)  # type: ignore[no-any-return]


class PoolGenerator(_GENERATOR, metaclass=_GeneratorType):  # type: ignore[misc]
    """Stands in for :class:`torch.Generator`: one for ``cuda`` draws in the notebook, as they all do."""


def _autocast_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *rest: Any, **named: Any) -> None:
        if is_pool(device_type):
            dtype = torch.float16 if dtype is None else dtype
            device_type = "cpu"
        original(self, device_type, dtype, *rest, **named)

    return init


def _scaler_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: Any, device: str = "cuda", *rest: Any, **named: Any) -> None:
        original(self, "cpu" if is_pool(device) else device, *rest, **named)

    return init


def _asked_of_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """For questions about a device type, which torch takes to be ``cuda`` when it is left out."""

    @wraps(original)
    def ask(device_type: str = "cuda") -> Any:
        return original("cpu" if is_pool(device_type) else device_type)

    return ask


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def load(file: Any, map_location: Any = None, *rest: Any, **named: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and is_pool(map_location):
            map_location = "cpu"
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # bytes to tensors, nothing to record
            return original(file, map_location, *rest, **named)

    return load


def _set_default_device(original: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda device: original(None if is_pool(device) else device)


_ALWAYS: tuple[tuple[Any, str, Any], ...] = (
    (_AUTOCAST, "__init__", _autocast_init(_AUTOCAST.__init__)),
    (_SCALER, "__init__", _scaler_init(_SCALER.__init__)),
    (torch, "load", _load(torch.load)),
    (torch, "Generator", PoolGenerator),
    (torch, "is_autocast_enabled", _asked_of_cpu(torch.is_autocast_enabled)),
    (torch, "get_autocast_dtype", _asked_of_cpu(torch.get_autocast_dtype)),
)
_WITHOUT_CUDA: tuple[tuple[Any, str, Any], ...] = (
    (torch, "set_default_device", _set_default_device(torch.set_default_device)),
    (torch.cuda, "synchronize", lambda device=None: None),
    (torch.cuda, "current_device", lambda: 0),
    (torch.cuda, "set_device", lambda device: None),
    (torch.cuda, "get_device_name", lambda device=None: "Djinn Lab pool"),
)


@contextmanager
def cuda_answers() -> Iterator[None]:
    with all_replaced((*_ALWAYS, *(() if torch.cuda.is_available() else _WITHOUT_CUDA))):
        yield
