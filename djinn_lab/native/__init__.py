"""The C++ extensions: where their files are, how they are built, and loading them.

Each extension has a Python implementation beside it: everything works without a compiler, only slower. A
built file's name carries a fingerprint of Python, torch, sources and flags. A file with another fingerprint
is never loaded; it is built anew in the background, and the next session uses it.
"""

from djinn_lab.native.extensions import EXTENSIONS, NativeExtension
from djinn_lab.native.loading import Finding, find, load, why_missing

__all__ = ["EXTENSIONS", "Finding", "NativeExtension", "find", "load", "why_missing"]
