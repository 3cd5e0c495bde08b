"""The page of all errors that a user can meet."""

from __future__ import annotations

import inspect

from reference_text import page, prose

from djinn_lab import errors


def errors_page() -> str:
    """Return the page: the tree of errors, then a heading for each."""
    summary, _, tree = inspect.cleandoc(errors.__doc__ or "").partition("::")
    classes = [kind for kind in vars(errors).values() if inspect.isclass(kind) and _is_public(kind)]
    return page(
        "# Errors",
        prose(summary),
        "Causes and cures are on the page [Troubleshooting](../troubleshooting.md). Those of REST requests "
        "have [their page](rest.md#errors). Each class is in `djinn_lab.errors`.",
        f"```text\n{inspect.cleandoc(tree)}\n```",
        *map(_error, classes),
    )


def _is_public(kind: type) -> bool:
    return issubclass(kind, BaseException) and not kind.__name__.startswith("_")


def _error(kind: type) -> str:
    bases = ", ".join(
        f"[`{base.__name__}`](#{base.__name__.lower()})"
        if hasattr(errors, base.__name__)
        else f"`{base.__name__}`"
        for base in kind.__bases__
        if not base.__name__.startswith("_")
    )
    return f"## `{kind.__name__}`\n\nA kind of {bases}.\n\n{prose(kind.__doc__)}"
