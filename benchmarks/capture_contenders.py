"""Ways to handle a torch op: run it, record it here, record it in ``torch._lazy``, fake it, ignore it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from djinn_lab.capture.recorders import capturing, make_recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.capture.torch_functions.hooks import UnwrappedDispatchMode
from djinn_lab.srg.program import EncodedProgram


class Contender(Protocol):
    """``scope`` is entered around making inputs, around the timed part and around ``settle``."""

    device: str

    @contextmanager
    def scope(self) -> Iterator[None]: ...

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Call ``make()``, with parameters of this contender's kind. Called outside ``scope``."""
        ...

    def settle(self) -> None:
        """Drop what is recorded, outside the timed part."""
        ...


class Eager:
    device = "cpu"

    @contextmanager
    def scope(self) -> Iterator[None]:
        yield

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        return make()

    def settle(self) -> None:
        pass


class NullBackend:
    """A backend that accepts programs and runs nothing, so that the cost of capture remains."""

    follow_max = 0

    def stage(self, data: memoryview) -> str:
        return f"{id(data):064x}"

    def release(self, values: Sequence[int]) -> None:
        pass

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        self._nodes = program.nodes

    def is_done(self) -> bool:
        return True

    def result(self, cancel: bool = False) -> RunResult:
        return RunResult(self._nodes)


class Djinn:
    device = "cpu"

    def __init__(self) -> None:
        self.recorder = make_recorder(NullBackend())

    @contextmanager
    def scope(self) -> Iterator[None]:
        with capturing(self.recorder, "benchmark", __file__):
            yield

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        return make()

    def settle(self) -> None:
        self.recorder.finish("cell end")


class TorchLazy:
    """PyTorch's own lazy tensors in C++, with the TorchScript backend; only their tracing is timed."""

    device = "lazy"

    def __init__(self) -> None:
        import torch._lazy
        import torch._lazy.ts_backend

        torch._lazy.ts_backend.init()

    @contextmanager
    def scope(self) -> Iterator[None]:
        yield

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        return make().to("lazy")

    def settle(self) -> None:
        torch._lazy.mark_step()
        torch._lazy.wait_device_ops()


class Fake:
    """Torch's fake tensors: shapes alone, nothing is recorded."""

    device = "cpu"

    def __init__(self) -> None:
        self._mode = FakeTensorMode()

    @contextmanager
    def scope(self) -> Iterator[None]:
        with self._mode:
            yield

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        with self._mode:
            return make()

    def settle(self) -> None:
        pass


class LayoutOnly(torch.Tensor):
    """A tensor with a layout and nothing else."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise AssertionError("the mode handles every op")


class _LayoutOnlyMode(UnwrappedDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (
            _layout_of(args[0]) if args and isinstance(args[0], torch.Tensor) else func(*args, **kwargs or {})
        )


def _layout_of(like: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        LayoutOnly, like.shape, like.stride(), 0, None, like.dtype
    )
    return made


class TorchDispatch:
    """Torch's way to a Python recorder and back, with a recorder that does nothing: no recorder in Python can
    take less. Results have the first input's layout, right for the elementwise kind alone."""

    device = "cpu"

    @contextmanager
    def scope(self) -> Iterator[None]:
        with _LayoutOnlyMode():
            yield

    def module(self, make: Callable[[], nn.Module]) -> nn.Module:
        return make()

    def settle(self) -> None:
        pass
