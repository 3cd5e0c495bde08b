"""``nbformat``, without a second of work at its import that no notebook has a use for.

It imports jsonschema, which compiles a grammar of international web addresses when ``rfc3987_syntax`` is
there, as it is beside JupyterLab. The schemas of notebooks ask for no such address.
"""

from __future__ import annotations

import sys

_GRAMMAR = "rfc3987_syntax"
_modules: dict[str, object] = sys.modules  # type: ignore[assignment]

_blocked = _modules.setdefault(_GRAMMAR, None) is None
try:
    import nbformat
finally:
    if _blocked:
        del _modules[_GRAMMAR]

__all__ = ["nbformat"]
