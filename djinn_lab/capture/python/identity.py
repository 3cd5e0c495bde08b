"""Exchanging what a tensor object is, while all references to it stay valid.

``x.set_(...)`` gives a tensor object other memory. Torch would exchange the inside of one object for
another's without a dispatch, so a plain tensor would end up with memory that is not there. The objects are
swapped instead, identity kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from djinn_lab.capture.python.tensor import LazyTensor
from djinn_lab.errors import CaptureError

if TYPE_CHECKING:
    from djinn_lab.capture.python.recorder import PythonRecorder


def is_in_a_graph(tensor: torch.Tensor) -> bool:
    """Return whether a backward graph, or anything else, holds the inside of ``tensor``."""
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    return count > 1


def take_over(tensor: torch.Tensor, fresh: torch.Tensor) -> bool:
    """Make the object ``tensor`` be what ``fresh`` is; what autograd and users hung on it stays on it. False,
    and nothing changes, when torch refuses because something else holds its inside.

    Backward through a graph that was built on ``tensor`` before raises from then on."""
    if tensor.requires_grad:
        fresh.requires_grad_()
    if getattr(tensor, "_is_param", False) or isinstance(tensor, torch.nn.Parameter):
        fresh._is_param = True
    if tensor.is_leaf and tensor.grad is not None and tensor.grad.shape == fresh.shape:
        gradient = tensor.grad
        if type(gradient) is not LazyTensor and gradient.dtype is not fresh.dtype:
            gradient = gradient.to(fresh.dtype)  # torch takes no other; ``model.double()`` converts it next
        fresh.grad = gradient
    fresh._backward_hooks = tensor._backward_hooks
    fresh._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks
    hook = None
    if tensor.requires_grad and tensor.is_leaf and is_in_a_graph(tensor):
        hook = torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_refuse)
    try:
        torch.utils.swap_tensors(tensor, fresh)
    except RuntimeError:
        if hook is not None:
            hook.remove()
        return False
    return True


def _refuse(gradients: object) -> NoReturn:
    raise CaptureError(
        "backward goes through a graph that was built before a cell put these parameters on the pool.",
        "Run the forward pass again in this cell.",
    )


def set_storage(recorder: PythonRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor.set_(memory on the host)``, which is how torch.load fills a tensor."""
    tensor, source = args[0], args[1] if len(args) > 1 else kwargs.get("source")
    if type(source) is LazyTensor:
        raise CaptureError(
            "set_() cannot make a tensor share a lazy tensor's memory.", "Use x.data = y or x.copy_(y)."
        )
    if type(tensor) is not LazyTensor:
        recorder.host.settle(tensor)
        with recorder.former.changing(tensor):
            return func(*args, **kwargs)
    with recorder.paused_recording(), torch.no_grad():
        plain = torch.empty(0, dtype=tensor.dtype)
        plain.set_(*args[1:], **kwargs)
    with recorder.former.changing(tensor):
        taken = not is_in_a_graph(tensor) and take_over(tensor, plain)
    if not taken:
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
