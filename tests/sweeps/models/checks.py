"""One architecture: the same work eagerly and in a captured cell, compared to the last bit."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from architectures import FAMILIES, build, candidate_inputs
from equality import difference, seed
from in_process import InProcessBackend, cell

from djinn_lab.capture.recorders import make_recorder
from djinn_lab.errors import CaptureError, Refused

Inputs = dict[str, torch.Tensor]
EQUAL, NOT_IN_EAGER, REFUSED, WRONG, RAISED = "equal", "not in eager", "refused", "wrong", "raised"
NEW_TOKENS = 6


def _forward(model: Any, inputs: Inputs) -> Any:
    with torch.no_grad():
        return model(**inputs)


def _backward(model: Any, inputs: Inputs) -> Any:
    model.train()
    returned = model(**inputs)
    first = next(item for item in returned.values() if isinstance(item, torch.Tensor) and item.requires_grad)
    first.float().square().mean().backward()
    return first, model


def _generate(**settings: Any) -> Callable[[Any, Inputs], Any]:
    def run(model: Any, inputs: Inputs) -> Any:
        kept = {name: item for name, item in inputs.items() if not name.startswith("decoder_")}
        return model.generate(**kept, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **settings)

    return run


TASKS: dict[str, Callable[[Any, Inputs], Any]] = {
    "forward": _forward,
    "backward": _backward,
    "greedy": _generate(do_sample=False),
    "sampling": _generate(do_sample=True, top_k=20, temperature=0.8),
    "beam search": _generate(do_sample=False, num_beams=3),
}


def check(family: str, model_type: str) -> dict[str, Any]:
    """What became of each task; ``outcome`` is the worst of them, and eager's refusal of the first one
    decides that the architecture is not in eager."""
    try:
        model = build(family, model_type)
        inputs = _accepted(model)
    except Exception as error:  # noqa: BLE001 - whatever transformers raises is the reason that is listed
        return {"outcome": NOT_IN_EAGER, "reason": _text(error), "tasks": {}}
    tasks = {name: _check_task(name, model, inputs) for name in FAMILIES[family].tasks}
    outcomes = [task["outcome"] for task in tasks.values()]
    worst = next((kind for kind in (WRONG, RAISED, REFUSED) if kind in outcomes), EQUAL)
    parameters = sum(item.numel() for item in model.parameters())
    return {"outcome": worst, "class": type(model).__name__, "parameters": parameters, "tasks": tasks}


def _accepted(model: Any) -> Inputs:
    first: Exception | None = None
    for inputs in candidate_inputs(model):
        try:
            _forward(copy.deepcopy(model), inputs)
        except Exception as error:  # noqa: BLE001 - the next kind of input may be the right one
            first = first or error
        else:
            return inputs
    assert first is not None
    raise first


def _check_task(name: str, model: Any, inputs: Inputs) -> dict[str, Any]:
    task = TASKS[name]
    eager, captured = copy.deepcopy(model), copy.deepcopy(model)
    try:
        seed(3)
        expected = task(eager, dict(inputs))
        stream = torch.get_rng_state()
    except Exception as error:  # noqa: BLE001 - eager's reason is what is listed
        return {"outcome": NOT_IN_EAGER, "reason": _text(error)}
    backend = InProcessBackend(2**34)
    recorder = make_recorder(backend)
    try:
        seed(3)
        with cell(recorder):
            found = task(captured, dict(inputs))
        problem = difference(found, expected)
        if problem is None and not torch.equal(torch.get_rng_state(), stream):
            problem = "the random stream stands elsewhere"
    except (CaptureError, Refused) as error:
        return {"outcome": REFUSED, "reason": _text(error)}
    except Exception as error:  # noqa: BLE001 - listed with its text
        return {"outcome": RAISED, "reason": _text(error)}
    finally:
        shutil.rmtree(backend.directory)
    counts = {"ops": recorder.ops_recorded, "cuts": len(backend.cuts)}
    return {"outcome": EQUAL, **counts} if problem is None else {"outcome": WRONG, "reason": problem}


def _text(error: Exception) -> str:
    installed = f"{Path(torch.__file__).parents[1]}/"  # says nothing to a reader on another machine
    return f"{type(error).__name__}: {error}".replace(installed, "").strip()[:400]
