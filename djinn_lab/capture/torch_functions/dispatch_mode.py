"""The base of our dispatch modes."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class UnwrappedDispatchMode(TorchDispatchMode):
    """Torch calls ``__torch_dispatch__`` as it is, and does not wrap it against dynamo, which costs a
    microsecond an op and two frames in every traceback."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
