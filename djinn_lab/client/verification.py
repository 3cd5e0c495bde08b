"""``--verify``: is what the pool computed what eager torch computes here?

While the cell is recorded, a :class:`~djinn_lab.capture.shadow.Shadow` runs each op here, too. Afterwards
every tensor that the cell made or changed and that a variable of the notebook holds is compared. Bit for
bit on a device of the same type as here; within tolerance otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.sending.segment import paused
from djinn_lab.capture.shadow import CAUSE, Shadow
from djinn_lab.client.session import Session
from djinn_lab.errors import VerificationError
from djinn_lab.numerics import settle_kernels

DEPTH_MAX = 6
ADVICE = (
    "The variables hold what the pool computed. Run the cell without %%djinn (in the kernel: with %%local) "
    "to continue with eager torch's results, and report this."
)


class Verification:
    """Around the code of one captured cell (inside the capture). Torch has as many threads meanwhile as
    the pool's devices, since sums are split by threads."""

    def __init__(self, session: Session, namespace: Mapping[str, object]) -> None:
        self._session = session
        self._namespace = namespace
        self._shadow = Shadow(session.recorder, self._number)
        self._numbers: list[str] = []
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Verification:
        with paused():
            settle_kernels()
        torch.set_num_threads(self._session.welcome.devices[0].threads)
        recorder = self._session.recorder
        lazies = [tensor for _, tensor in named_tensors(self._namespace) if is_lazy(tensor)]
        recorder.fetch_whole(lazies, CAUSE)
        self._shadow.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: object) -> None:
        self._shadow.__exit__(*failure)  # type: ignore[no-untyped-call]
        torch.set_num_threads(self._threads)

    def conclude(self, displayed: object, device: str | None) -> str:
        """Compare after the cell ran, and return one line for people. Raises VerificationError for what
        differs."""
        found = dict(named_tensors({**self._namespace, "the displayed value": displayed}))
        changed = {name: tensor for name, tensor in found.items() if self._shadow.was_changed(tensor)}
        lazies = [tensor for tensor in changed.values() if is_lazy(tensor)]
        with self._session.recorder.paused_recording():
            self._session.recorder.fetch_tensors(lazies, CAUSE)
        self._refuse_failure()
        kind = next((i.kind for i in self._session.welcome.devices if i.device == device), "cpu")
        problems = list(self._numbers)
        for name, tensor in changed.items():
            with paused(), torch.no_grad():
                problem = difference(self._plain(tensor), self._shadow.of(tensor), exact=kind == "cpu")
            if problem is not None:
                problems.append(f"{name}: {problem}")
        if problems:
            rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise VerificationError(f"{device} and eager torch differ in {problems[0]}{rest}.", ADVICE)
        how = (
            "bit for bit"
            if kind == "cpu"
            else f"within tolerance ({device} is a {kind} device, eager torch ran on the CPU here)"
        )
        return f"verified: {len(changed)} tensor{'s' if len(changed) != 1 else ''} equal {how}"

    def _number(self, op: str, ours: object, theirs: object) -> None:
        line = self._session.recorder.scopes.line()
        self._numbers.append(f"the number read at line {line} ({op}): {ours!r}, eager torch has {theirs!r}")

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor):
            fetched: torch.Tensor = self._session.recorder.fetch_tensors([tensor], CAUSE)[0]
            return fetched
        return tensor.detach()

    def _refuse_failure(self) -> None:
        if self._shadow.failure is not None:
            line, error = self._shadow.failure
            raise VerificationError(
                f"eager torch raised {type(error).__name__} at line {line} and the pool did not: {error}",
                ADVICE,
            )


def difference(ours: torch.Tensor, theirs: torch.Tensor, exact: bool) -> str | None:
    """None when they are equal (bit for bit, or within torch's default tolerance)."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{tuple(ours.shape)} {ours.dtype}, where eager torch has {tuple(theirs.shape)} {theirs.dtype}"
    ours, theirs = _rows(ours), _rows(theirs)
    if ours.numel() == 0 or torch.equal(_bits(ours), _bits(theirs)):
        return None
    exact = exact or not (ours.is_floating_point() or ours.is_complex())
    close = torch.isclose(ours, theirs, equal_nan=True) if ours.dtype is not torch.bool else ours == theirs
    if not exact and bool(close.all()):
        return None
    unequal = (_bits(ours) != _bits(theirs)).any(-1) if exact else ~close
    first = [int(part) for part in unequal.nonzero()[0]]
    wide = torch.complex128 if ours.is_complex() else torch.float64
    largest = (ours.to(wide) - theirs.to(wide)).abs().max().item()
    near = "within" if bool(close.all()) else "not within"
    return (
        f"{int(unequal.sum())} of {ours.numel()} elements, first at index {first} "
        f"({ours[tuple(first)].item()!r}, eager torch has {theirs[tuple(first)].item()!r}), "
        f"largest difference {largest:.3g}, {near} tolerance"
    )


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, those of an element in the last dimension."""
    return tensor.unsqueeze(-1).view(torch.uint8)


def named_tensors(namespace: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor once, under its first name: variables, items of lists and dicts, fields of data classes,
    parameters, buffers and gradients of modules, state of optimizers. Names that begin with ``_`` are left
    out."""
    seen: set[int] = set()
    for name, value in list(namespace.items()):
        if not name.startswith("_"):
            yield from _inside(name, value, seen, 0)


def _inside(name: str, value: object, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if depth > DEPTH_MAX or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        yield name, value
        if value.is_leaf and value.grad is not None:
            yield from _inside(f"{name}.grad", value.grad, seen, depth + 1)
        return
    parts = _parts(name, value)
    if parts is not None:
        seen.add(id(value))
        for inner, part in parts:
            yield from _inside(inner, part, seen, depth + 1)


def _parts(name: str, value: object) -> list[tuple[str, object]] | None:
    if isinstance(value, torch.nn.Module):
        held = [*value.named_parameters(), *value.named_buffers()]
        return [(f"{name}.{path}", tensor) for path, tensor in held]
    if isinstance(value, torch.optim.Optimizer):
        return [(f"{name}.state[{index}]", state) for index, state in enumerate(value.state.values())]
    if isinstance(value, Mapping):
        return [(f"{name}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (f"{name}.{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)
        ]
    return None
