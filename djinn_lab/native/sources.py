"""The sources of an extension and the fingerprint of what would be built from them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from djinn_lab.native.extensions import NativeExtension
from djinn_lab.native.target import BuildTarget

FLAGS = ("-O2", "-g0", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall")
TORCH_LIBRARIES = ("-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10")
SUFFIX = ".so"

_QUOTED_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def units(extension: NativeExtension, package: Path) -> list[Path]:
    """Return the ``.cpp`` files, sorted; empty when this version of the package has none."""
    return sorted((package / extension.folder).glob("*.cpp"))


def flags(extension: NativeExtension, variant: str) -> tuple[str, ...]:
    """Return the compiler's flags without any path, as they count for the fingerprint."""
    named = (f"-DTORCH_EXTENSION_NAME={extension.module}",) if extension.needs_torch else ()
    return (*FLAGS, *named, *extension.variants[variant])


def file_name(extension: NativeExtension, variant: str, target: BuildTarget, package: Path) -> str:
    """Return the built file's name: it changes with whatever would make the file another one."""
    return f"{stem(extension, variant, target)}-{fingerprint(extension, variant, target, package)}{SUFFIX}"


def stem(extension: NativeExtension, variant: str, target: BuildTarget) -> str:
    """Return the part of the name before the fingerprint."""
    torch = f"torch{target.torch.api}" if extension.needs_torch and target.torch else ""
    return "-".join(part for part in (extension.module, variant, target.tag, torch) if part)


def fingerprint(extension: NativeExtension, variant: str, target: BuildTarget, package: Path) -> str:
    """Hash flags, target, and every source with the headers that it includes."""
    return _hash(extension, variant, target, package, units(extension, package))


def unit_fingerprint(
    extension: NativeExtension, variant: str, target: BuildTarget, package: Path, unit: Path
) -> str:
    """Hash one source with the headers that it includes, so that an edit compiles only what it touches."""
    return _hash(extension, variant, target, package, [unit])


def _hash(
    extension: NativeExtension, variant: str, target: BuildTarget, package: Path, roots: Iterable[Path]
) -> str:
    total = hashlib.sha256()
    version = target.torch.api if extension.needs_torch and target.torch else ""
    for text in (target.tag, version, *flags(extension, variant)):
        total.update(text.encode() + b"\0")
    for path in sorted(_with_headers(roots, package)):
        content = path.read_bytes()
        total.update(f"{path.relative_to(package)}\0{len(content)}\0".encode() + content)
    return total.hexdigest()[:12]


def _with_headers(roots: Iterable[Path], package: Path) -> set[Path]:
    """Follow ``#include "..."`` through the package's own files."""
    found: set[Path] = set()
    waiting = list(roots)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        for name in _QUOTED_INCLUDE.findall(text):
            for base in (path.parent, package):
                header = (base / name).resolve()
                if header.is_file() and header.is_relative_to(package):
                    waiting.append(header)
                    break
    return found
