"""``x.set_(...)``, which gives a tensor object other memory, and copies with ``copy.deepcopy``.

Torch would exchange the inside of one object for another's without a dispatch, so a plain tensor would
end up with memory that is not there. The objects are swapped instead, identity kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from djinn_lab.capture.python.identity import is_in_a_graph, take_over
from djinn_lab.capture.python.tensor import LazyTensor
from djinn_lab.errors import CaptureError

if TYPE_CHECKING:
    from djinn_lab.capture.python.recorder import PythonRecorder


def set_storage(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor.set_(memory on the host)``, which is how torch.load fills a tensor."""
    tensor, source = args[0], args[1] if len(args) > 1 else kwargs.get("source")
    if type(source) is LazyTensor:
        raise CaptureError(
            "set_() cannot make one tensor look at a lazy tensor's memory.", "Use x.data = y or x.copy_(y)."
        )
    if type(tensor) is not LazyTensor:
        recorder.host.settle(tensor)
        return func(*args, **kwargs)
    with recorder.paused_recording(), torch.no_grad():
        plain = torch.empty(0, dtype=tensor.dtype)
        plain.set_(*args[1:], **kwargs)
    if is_in_a_graph(tensor) or not take_over(tensor, plain):
        raise CaptureError("set_() cannot change a tensor that a graph is built on.", "Use .detach() first.")
    return tensor


def deep_copy(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``copy.deepcopy`` of a plain tensor gives a plain one."""
    tensor = args[0]
    if type(tensor) is LazyTensor:
        return func(*args, **kwargs)
    recorder.host.settle(tensor)
    with recorder.paused_recording():
        return func(*args, **kwargs)


WHOLE_TENSOR_CALLS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.set_: set_storage,
    torch.Tensor.__deepcopy__: deep_copy,
}
