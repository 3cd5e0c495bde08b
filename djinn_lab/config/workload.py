"""Detect what kind of work a cell's code does, or guess it from the installed packages."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import msgspec

from djinn_lab.config.profiles import Workload

_TRAINING_METHODS = frozenset({"backward", "zero_grad", "clip_grad_norm_", "clip_grad_value_"})
_TRAINING_NAMES = frozenset({"Trainer", "SFTTrainer", "DPOTrainer", "LightningModule", "TrainingArguments"})
_GENERATION_METHODS = frozenset({"generate"})
_GENERATION_NAMES = frozenset(
    {
        "AutoModelForCausalLM",
        "AutoModelForSeq2SeqLM",
        "GPT2LMHeadModel",
        "TextIteratorStreamer",
        "TextStreamer",
    }
)
_GENERATION_KEYWORDS = frozenset({"past_key_values", "max_new_tokens", "use_cache"})
_GENERATION_TASKS = frozenset({"text-generation", "text2text-generation", "summarization"})
_SERVING_PACKAGES = ("vllm", "sglang", "text_generation", "llama_cpp")
_TRAINING_PACKAGES = ("lightning", "pytorch_lightning", "deepspeed", "trl")


class Guess(msgspec.Struct, frozen=True):
    """The workload that was detected. ``evidence``: one sentence that says what was seen and where."""

    workload: Workload
    evidence: str

    def because(self, why: str) -> Guess:
        """Return the same workload, with a reason before the evidence."""
        return Guess(self.workload, f"{why}{self.evidence[0].lower()}{self.evidence[1:]}")


def detect_workload(source: str | None, packages: Iterable[str] = (), graphs: Guess | None = None) -> Guess:
    """Return the workload: training when gradients are computed, LLM serving when tokens are generated, else
    basic inference.

    Code wins over what the user's own ``graphs`` were, and these over packages. Notebook lines that are no
    Python (``%magic``, ``!command``) are skipped.
    """
    if source and source.strip():
        tree, problem = _parse(source)
        if tree is not None:
            return _from_code(tree) or Guess(
                "basic_inference", "The code neither computes gradients nor generates tokens"
            )
        because = f"The code could not be read ({problem}); "
        return _from_packages(packages, because) if graphs is None else graphs.because(because)
    return graphs or _from_packages(packages, "")


def joined_cells(cells: Iterable[str]) -> str:
    """Return the code of a notebook's cells, one after the other, without those that are no Python."""
    return "\n".join(cell for cell in cells if _parse(cell)[0] is not None)


def _parse(source: str) -> tuple[ast.Module | None, str]:
    lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        tree = compile("\n".join(lines), "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError) as error:
        return None, f"line {getattr(error, 'lineno', None) or 0}: {getattr(error, 'msg', None) or error}"
    assert isinstance(tree, ast.Module)
    return tree, ""


def _from_code(tree: ast.Module) -> Guess | None:
    generation: Guess | None = None
    imports_lightning = any("lightning" in name for name in _imported(tree))
    for node in ast.walk(tree):
        training = _training_sign(node, imports_lightning)
        if training:
            return Guess("research_training", f"Line {_line(node)} has {training}, which is a training step")
        sign = _generation_sign(node)
        if sign and generation is None:
            generation = Guess("llm_serving", f"Line {_line(node)} has {sign}, which generates text")
    return generation


def _training_sign(node: ast.AST, imports_lightning: bool) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method in _TRAINING_METHODS:
            return f"{method}()"
        if method == "step" and "optim" in ast.unparse(node.func.value).lower():
            return "optimizer.step()"
        if method == "fit" and imports_lightning:
            return "fit() with Lightning"
    return _name_sign(node, _TRAINING_NAMES)


def _generation_sign(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _GENERATION_METHODS:
            return f"{node.func.attr}()"
        for keyword in node.keywords:
            if keyword.arg in _GENERATION_KEYWORDS:
                return f"{keyword.arg}="
        for argument in node.args:
            if isinstance(argument, ast.Constant) and argument.value in _GENERATION_TASKS:
                return f"the task {argument.value!r}"
    return _name_sign(node, _GENERATION_NAMES)


def _name_sign(node: ast.AST, names: frozenset[str]) -> str | None:
    if isinstance(node, ast.Name) and node.id in names:
        return node.id
    if isinstance(node, ast.Attribute) and node.attr in names:
        return node.attr
    if isinstance(node, ast.ImportFrom | ast.Import):
        return next((alias.name for alias in node.names if alias.name in names), None)
    return None


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _from_packages(packages: Iterable[str], because: str) -> Guess:
    installed = set(packages)
    for names, workload in ((_SERVING_PACKAGES, "llm_serving"), (_TRAINING_PACKAGES, "research_training")):
        hit = next((name for name in names if name in installed), None)
        if hit:
            return Guess(_as_workload(workload), f"{because}the package {hit} is installed".capitalize())
    return Guess(
        "basic_inference", f"{because}no code was given and no package points elsewhere".capitalize()
    )


def _as_workload(text: str) -> Workload:
    return "llm_serving" if text == "llm_serving" else "research_training"
