"""A cell puts back what it replaces in torch, however the cell ends and whatever else replaces it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partialmethod
from types import ModuleType
from typing import Any

import pytest
import torch
from in_process import InProcessBackend, cell
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder, make_recorder
from djinn_lab.capture.torch_functions.replaced import MISSING, Places, PythonPlaces

_OWNERS: tuple[Any, ...] = (
    torch,
    torch.cuda,
    torch._VF,
    torch.Tensor,
    nn.Module,
    torch.amp.autocast_mode.autocast,
    torch.amp.GradScaler,
    DataLoader,
    _BaseDataLoaderIter,
)
native_only = pytest.mark.native_recorder(reason="only the native recorder replaces these")
PlacesType = Callable[[list[tuple[Any, str]], object], Places]


def _torch_now() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in _OWNERS]


def _changed_since(before: list[dict[str, Any]]) -> set[str]:
    changed: set[str] = set()
    for old, new in zip(before, _torch_now(), strict=True):
        changed |= {name for name in old.keys() | new.keys() if old.get(name, old) is not new.get(name, new)}
    return changed


def _double(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: 2 * function(*args, **kwargs)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_torch_after_a_cell_is_what_it_was(recorder: Recorder, error: type[BaseException] | None) -> None:
    with cell(recorder):
        torch.ones(2)  # imports what it needs
    before = _torch_now()
    for _ in range(2):
        with pytest.raises(error) if error else nullcontext(), cell(recorder):
            assert _changed_since(before) >= {"Generator", "load", "__next__", "__iter__", "__init__"}
            if error is not None:
                raise error
        assert not _changed_since(before)


def test_cell_within_a_cell_of_another_session_leaves_torch_as_it_was(recorder: Recorder) -> None:
    other = make_recorder(InProcessBackend())
    for outer, inner in ((recorder, other), (other, recorder)):
        before = _torch_now()
        with cell(outer):
            outside = _torch_now()
            with cell(inner):
                inside = nn.Linear(2, 2)(torch.ones(1, 2, device="cuda"))
            assert not _changed_since(outside)
        assert is_lazy(inside)
        assert not _changed_since(before)


def test_function_that_a_user_replaced_before_the_cell_is_called_in_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = torch.ones
    found = []
    for replacement in (original, _double(original), original):
        monkeypatch.setattr(torch, "ones", replacement)
        with cell(recorder):
            made = torch.ones(2, device="cuda")
        assert is_lazy(made)
        assert torch.ones is replacement
        found.append(made.tolist())
    assert found == [[1, 1], [2, 2], [1, 1]]


@native_only
def test_function_that_a_user_replaces_in_a_cell_ends_with_it(recorder: Recorder) -> None:
    original = torch.ones
    with cell(recorder):
        torch.ones = _double(torch.ones)
        doubled = torch.ones(2, device="cuda")
        del torch.zeros
    assert torch.ones is original
    assert torch.zeros(1).tolist() == [0]
    with cell(recorder):
        ones = torch.ones(2, device="cuda")
    assert [doubled.tolist(), ones.tolist()] == [[2, 2], [1, 1]]


def _called_twice(module: nn.Module, *args: Any) -> Any:
    return module._wrapped_call_impl(module._wrapped_call_impl(*args))


@pytest.mark.parametrize("replacement", [_called_twice, partialmethod(_called_twice)])
def test_module_call_that_a_user_replaced_is_used_as_long_as_it_is_there(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, replacement: Any
) -> None:
    other = make_recorder(InProcessBackend())
    x = torch.randn(1, 2)

    def found_by(recorder: Recorder) -> list[Any]:
        torch.manual_seed(0)
        with cell(recorder):
            found = nn.Linear(2, 2)(x)
        return found.tolist()  # type: ignore[no-any-return]

    once = found_by(recorder)
    assert found_by(other) == once
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__call__", replacement)
        assert found_by(recorder) != once
        assert vars(nn.Module)["__call__"] is replacement
    assert found_by(other) == once
    assert found_by(recorder) == once


@native_only
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
def test_script_in_a_cell_finds_functions_that_take_a_device(recorder: Recorder) -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones([2], device="cpu")

    with cell(recorder):
        found = torch.jit.script(add)(torch.zeros(2) * 1)
    assert found.tolist() == [1, 1]


@native_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiler_runs_eagerly_only_in_the_cell(recorder: Recorder) -> None:
    from torch._dynamo import eval_frame

    with cell(recorder):
        compile_in_cell = torch.compile
        compile_in_cell(nn.Identity())
        assert eval_frame._stance.stance == "force_eager"
    compile_in_cell(nn.Identity())
    assert eval_frame._stance.stance == "default"


@pytest.fixture
def places(recorder_kind: str) -> PlacesType:
    if recorder_kind == "python":
        return PythonPlaces
    from djinn_lab.capture.native.extension import native

    made: PlacesType = native.Places
    return made


def test_types_and_their_subtypes_notice_what_is_written(places: PlacesType) -> None:
    class Base:
        def name(self) -> str:
            return "base"

        def __call__(self) -> str:
            return "called"

    class Derived(Base):
        pass

    module = ModuleType("module")
    derived: Any = Derived()
    wanted: list[Any] = [lambda self: "new", lambda self: "called anew", lambda self: 7, 5]
    spots = places([(Base, "name"), (Base, "__call__"), (Base, "__len__"), (module, "value")], MISSING)

    def look() -> tuple[str, str, bool, bool]:
        return derived.name(), derived(), hasattr(derived, "__len__"), hasattr(module, "value")

    for _ in range(3):
        before = spots.read()
        assert before[2:] == [MISSING, MISSING]
        assert look() == ("base", "called", False, False)
        spots.write(wanted)
        assert spots.read() == wanted
        assert look() == ("new", "called anew", True, True)
        assert (len(derived), module.value) == (7, 5)
        spots.write(before)
    with pytest.raises(TypeError, match="no len"):
        len(derived)


@native_only
def test_places_after_one_that_cannot_be_written_are_written(places: PlacesType) -> None:
    class Sealed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise AttributeError(f"{name} is sealed")

    class Owner(metaclass=Sealed):
        pass

    class Open:
        value = 1

    with pytest.raises(AttributeError, match="value is sealed"):
        places([(Owner, "value"), (Open, "value")], MISSING).write([2, 2])
    assert Open.value == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
    ],
    ids=["dropout", "attention"],
)
def test_modules_are_scripted_in_a_cell(module: nn.Module, recorder: Recorder) -> None:
    x = torch.ones(2, 1, 4)
    expected = module(x).detach()
    with cell(recorder):
        scripted = torch.jit.script(module)
    assert isinstance(scripted, torch.jit.ScriptModule)
    with cell(recorder):
        found = scripted(x)
    assert torch.equal(found.detach().cpu(), expected)
