"""The page of the names that a program imports from ``djinn_lab``, and of the session that it gets."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from reference_text import page, prose

import djinn_lab
from djinn_lab.client.session import Session

LINE_MAX = 80


class _Bare(str):
    """An annotation that a signature shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def python_page() -> str:
    """Return the page: a heading for each public name, with its signature and docstring."""
    return page(
        "# Python API",
        "Import these names from `djinn_lab`. [Notebooks](../notebook.md) shows how they are used, and "
        "[Errors](errors.md) what they raise.",
        "## Functions",
        *(_entry(name, name, getattr(djinn_lab, name)) for name in djinn_lab.__all__),
        "## Session",
        "What `connect` returns.",
        prose(Session.__doc__),
        *_members(Session),
    )


def _members(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        if name.startswith("_") or not member.__doc__:
            continue
        if isinstance(member, property):
            yield f"### `session.{name}`\n\n{prose(member.__doc__)}"
        elif inspect.isfunction(member):
            yield _entry(f"session.{name}", name, member)


def _entry(title: str, name: str, function: object) -> str:
    assert callable(function)
    call = f"{name}{_signature(inspect.signature(function))}"
    return f"### `{title}`\n\n```python\n{call}\n```\n\n{prose(function.__doc__)}"


def _signature(signature: inspect.Signature) -> str:
    """Return a signature without ``self``, with a line for each parameter where it is long."""
    parameters = [
        one.replace(annotation=_Bare(one.annotation))
        for one in signature.parameters.values()
        if one.name != "self"
    ]
    returned = _Bare(signature.return_annotation)
    text = str(signature.replace(parameters=parameters, return_annotation=returned))
    if len(text) <= LINE_MAX:
        return text
    lines: list[str] = []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        lines.append(str(one))
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {returned}"
