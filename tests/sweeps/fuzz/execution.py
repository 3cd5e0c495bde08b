"""Running a program eagerly or captured, and what it left behind."""

from __future__ import annotations

import contextlib
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sweeps.fuzz.operations import OPERATIONS
from sweeps.fuzz.steps import MissingSlot, Program, Step, resolve

from djinn_lab.errors import CaptureError

SIGNATURE = 60
EAGER_AGAIN = 3
_NUMBERS = re.compile(r"\([-0-9, ]*\)|-?[0-9.]+(e-?[0-9]+)?")


@dataclass(frozen=True)
class Outcome:
    """``error``: what the step raised."""

    error: Exception | None = None


@dataclass
class Ran:
    """What a program left behind.

    ``error`` is the first one and ``failed`` the slot of its step, -1 at the end of a cell. The steps after
    it did not run.
    """

    values: dict[int, Any] = field(default_factory=dict)
    random_state: torch.Tensor | None = None
    error: Exception | None = None
    failed: int | None = None


def run_step(step: Step, values: dict[int, Any]) -> Outcome:
    """Run one step and put its result into ``values``. A step that reads a missing slot is skipped."""
    try:
        arguments = resolve(step.args, values)
    except MissingSlot:
        return Outcome()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values[step.slot] = OPERATIONS[step.op].call(*arguments)
    except Exception as error:  # noqa: BLE001 - what it raised is what is compared
        return Outcome(error)
    return Outcome()


def run_eagerly(program: Program) -> Ran:
    return _run(program, None)


def difference(program: Program) -> Difference | None:
    """Run the program both ways and compare. What eager torch itself leaves to chance is no difference."""
    captured, eager = run_captured(program), run_eagerly(program)
    found = compare(captured, eager)
    if found is None or found.kind not in ("value", "gradient"):
        return found
    for _ in range(EAGER_AGAIN):
        _dirty_memory()
        if compare(run_eagerly(program), eager) is not None:
            return None
    return found


def _dirty_memory() -> None:
    """Let memory that is allocated next hold other bytes than before."""
    kept = [torch.full((elements,), elements % 251, dtype=torch.uint8) for elements in range(1, 600, 7)]
    del kept


def run_captured(program: Program) -> Ran:
    """Run the program with its captured segments as cells of one session, on a worker in this process."""
    from in_process import InProcessBackend

    from djinn_lab.capture.recorders import make_recorder

    return _run(program, make_recorder(InProcessBackend(2**30)))


def _run(program: Program, recorder: Any) -> Ran:
    ran = Ran()
    torch.default_generator.manual_seed(program.seed)  # torch.manual_seed also walks the stack, for CUDA
    for segment in program.segments:
        try:
            with _cell(recorder) if segment.captured and recorder is not None else contextlib.nullcontext():
                for step in segment.steps:
                    outcome = run_step(step, ran.values)
                    if outcome.error is not None:
                        ran.error, ran.failed = outcome.error, step.slot
                        break
        except Exception as error:  # noqa: BLE001 - an error of the worker, known at the end of the cell
            ran.error, ran.failed = ran.error or error, -1 if ran.failed is None else ran.failed
        if ran.error is not None:
            break
    ran.random_state = torch.get_rng_state()
    return ran


def _cell(recorder: Any) -> Any:
    from in_process import cell

    return cell(recorder)


def count_lazy(ran: Ran) -> int:
    """How many of the values are lazy, which shows that something was captured at all."""
    from djinn_lab.capture.lazy import is_lazy

    return sum(is_lazy(value) for value in ran.values.values())


@dataclass(frozen=True)
class Difference:
    """``kind``: ``refused`` (capture says that it does not do this), ``error`` (not the eager error),
    ``unnoticed`` (no error where eager raised), ``value``, ``layout``, ``gradient`` or ``random``. ``slot``
    differs first."""

    kind: str
    slot: int
    text: str

    @property
    def signature(self) -> str:
        """What differences of one cause have in common."""
        return f"{self.kind}: {_NUMBERS.sub('#', self.text.splitlines()[0])[:SIGNATURE]}"


def compare(captured: Ran, eager: Ran) -> Difference | None:
    """Return the first difference, None when the captured program did what the eager one did.

    An error that depends on values may come later under capture, as the worker's, with the same type.
    After an error values are not compared: the cell that it ended may have lost some.
    """
    if eager.error is not None or captured.error is not None:
        return _compare_errors(captured, eager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _fetch(captured)
        for slot, expected in eager.values.items():
            if slot not in captured.values:
                return Difference("value", slot, "is missing")
            found = captured.values[slot]
            if not _is_readable(expected):
                continue
            try:
                problem = _difference(found, expected)
            except Exception as error:  # noqa: BLE001 - a value that cannot be read is a finding
                return Difference("error", slot, f"reading it raises {type(error).__name__}: {error}"[:300])
            if problem is not None:
                return Difference(problem[0], slot, problem[1])
    assert captured.random_state is not None
    assert eager.random_state is not None
    if not torch.equal(captured.random_state, eager.random_state):
        return Difference("random", -1, "the random stream is elsewhere")
    return None


def _fetch(ran: Ran) -> None:
    """Fetch all values at once. The comparison, which reads each, reports the unreadable ones."""
    from djinn_lab.capture.lazy import is_lazy, recorder_of

    tensors = [value for value in ran.values.values() if is_lazy(value)]
    with contextlib.suppress(Exception):
        if tensors:
            recorder_of(tensors[0]).fetch_tensors(tensors, "comparison")


def _compare_errors(captured: Ran, eager: Ran) -> Difference | None:
    if captured.error is None:
        assert eager.failed is not None
        return Difference("unnoticed", eager.failed, f"nothing instead of {_named(eager.error)}")
    assert captured.failed is not None
    if isinstance(captured.error, CaptureError):
        return Difference("refused", captured.failed, _named(captured.error))
    if eager.error is None:
        return Difference("error", captured.failed, f"{_named(captured.error)} instead of nothing")
    early = 0 <= captured.failed < (eager.failed or 0)
    if early or _type_name(captured.error) != _type_name(eager.error):
        text = f"{_named(captured.error)} instead of {_named(eager.error)} in v{eager.failed}"
        return Difference("error", captured.failed, text)
    return None


def _type_name(error: Exception) -> str:
    """Which kind of RuntimeError a kernel raises is not promised."""
    name = type(error).__name__
    return "RuntimeError" if name == "NotImplementedError" else name


def _is_readable(expected: Any) -> bool:
    """Eager tensors exist that no kernel can read, such as negative views of float8, and views that autograd
    has given up."""
    try:
        return not isinstance(expected, torch.Tensor) or (expected.is_leaf, _host(expected)) is not None
    except RuntimeError:
        return False


def _named(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _difference(found: Any, expected: Any) -> tuple[str, str] | None:
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor):
            return "value", f"{type(found).__name__} instead of a tensor"
        return _tensor_difference(found, expected)
    if isinstance(expected, np.ndarray):
        same = found.dtype == expected.dtype and found.shape == expected.shape
        equal = same and _same_bits(found.tobytes(), expected.tobytes(), found, expected)
        return None if equal else ("value", f"array {found} instead of {expected}"[:300])
    if repr(found) != repr(expected):
        return "value", f"{found!r} instead of {expected!r}"[:300]
    return None


def _same_bits(left: bytes, right: bytes, found: Any, expected: Any) -> bool:
    """Two NaNs are equal whatever their bits."""
    return left == right or (found.dtype.kind in "fc" and np.array_equal(found, expected, equal_nan=True))


def _tensor_difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[str, str] | None:
    left = (found.dtype, found.shape, found.requires_grad)
    right = (expected.dtype, expected.shape, expected.requires_grad)
    if left != right:
        return "value", f"{left} instead of {right}"
    if expected.numel() > 1 and found.stride() != expected.stride():
        return "layout", f"strides {found.stride()} instead of {expected.stride()}"
    got, want = _host(found), _host(expected)
    if not _equal(got, want):
        return "value", f"{got.tolist()} instead of {want.tolist()}"[:300]
    if expected.is_leaf and expected.grad is not None:
        if found.grad is None:
            return "gradient", "None instead of a gradient"
        if not _equal(_host(found.grad), _host(expected.grad)):
            return "gradient", f"{_host(found.grad).tolist()} instead of {expected.grad.tolist()}"[:300]
    elif expected.is_leaf and found.grad is not None:
        return "gradient", "a gradient instead of None"
    return None


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().clone()


def _equal(got: torch.Tensor, want: torch.Tensor) -> bool:
    if not want.numel():
        return True
    bits = [torch.empty(x.shape, dtype=x.dtype).copy_(x) for x in (got, want)]  # rows without gaps
    if torch.equal(*(x.reshape(-1).view(torch.uint8) for x in bits)):
        return True
    wide = [x.to(torch.complex128) for x in (got, want)]
    return bool(torch.allclose(*wide, rtol=0, atol=0, equal_nan=True))
