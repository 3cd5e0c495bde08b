"""Building extensions: objects two at a time, one builder at a time in a folder, files replaced whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from djinn_lab.native.compiler import CompilationFailed, Compiler
from djinn_lab.native.extensions import NativeExtension
from djinn_lab.native.sources import SUFFIX, file_name, stem, unit_fingerprint, units
from djinn_lab.native.target import BuildTarget
from djinn_lab.system.locks import is_locked, lock

JOBS_MAX = 2
LOCK = "build.lock"
OBJECTS = "objects"
TEMPORARY = ".tmp"
LOG = ".log"

Report = Callable[[str], None]


class BuildFailed(Exception):
    """At least one extension was not built; the message holds each one's compiler output."""


@dataclass(frozen=True)
class WantedBuild:
    """An extension in one of its variants."""

    extension: NativeExtension
    variant: str

    @property
    def label(self) -> str:
        return f"{self.extension.name} ({self.variant})" if self.variant else self.extension.name


@dataclass(frozen=True)
class Builder:
    """Builds from the sources in ``package`` into the folder ``into``."""

    package: Path
    into: Path
    target: BuildTarget
    compiler: Compiler

    def build(
        self, wanted: Sequence[WantedBuild], report: Report = lambda line: None, force: bool = False
    ) -> list[Path]:
        """Build what is not there yet and return every file. Raises BuildFailed after all were tried.

        A second builder of the same folder waits for the first, and finds the files there.
        """
        self.into.mkdir(parents=True, exist_ok=True)
        with exclusive(self.into), ThreadPoolExecutor(JOBS_MAX, "native build") as jobs:
            self._remove_leftovers()
            begun = [(item, self._begin(item, jobs, force)) for item in wanted]
            failures: list[str] = []
            files = []
            for item, objects in begun:
                file = self._file(item)
                try:
                    if objects is not None:
                        self._link(item, [made.result() for made in objects], file)
                        report(f"{item.label}: built {file}")
                    else:
                        report(f"{item.label}: {file} is there")
                    files.append(file)
                except CompilationFailed as error:
                    log_of(file).write_text(str(error), encoding="utf-8")
                    failures.append(f"{item.label}: the compiler failed\n{error}")
        if failures:
            raise BuildFailed("\n".join(failures))
        return files

    def _file(self, item: WantedBuild) -> Path:
        return self.into / file_name(item.extension, item.variant, self.target, self.package)

    def _begin(self, item: WantedBuild, jobs: ThreadPoolExecutor, force: bool) -> list[Future[Path]] | None:
        """Submit a job for each source; None when the file is there."""
        if self._file(item).is_file() and not force:
            return None
        sources = units(item.extension, self.package)
        return [jobs.submit(self._compile, item, unit, force) for unit in sources]

    def _compile(self, item: WantedBuild, unit: Path, force: bool) -> Path:
        extension, variant = item.extension, item.variant
        print_of_unit = unit_fingerprint(extension, variant, self.target, self.package, unit)
        name = f"{stem(extension, variant, self.target)}-{unit.stem}-{print_of_unit}.o"
        result = self.into / OBJECTS / name
        if force or not result.is_file():
            result.parent.mkdir(exist_ok=True)
            with replacing(result) as temporary:
                self.compiler.compile(extension, variant, self.target, self.package, unit, temporary)
        return result

    def _link(self, item: WantedBuild, objects: list[Path], file: Path) -> None:
        with replacing(file) as temporary:
            self.compiler.link(item.extension, self.target, objects, temporary)
        prefix = f"{stem(item.extension, item.variant, self.target)}-"
        for old in (*self.into.glob("*.so"), *self.into.glob(f"*{LOG}")):
            if old.name.startswith(prefix) and old != file:
                old.unlink(missing_ok=True)
        for old in (self.into / OBJECTS).glob("*.o"):
            if old.name.startswith(prefix) and old not in objects:
                old.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Remove what builders that were killed left; with the lock held no builder is alive."""
        for left in self.into.rglob(f"*{TEMPORARY}"):
            left.unlink(missing_ok=True)


def log_of(file: Path) -> Path:
    """Return where the compiler's output is kept after a failed build of ``file``."""
    return file.with_name(file.name.removesuffix(SUFFIX) + LOG)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Wait until this process is the only builder of ``folder``. The lock ends with the process."""
    with (folder / LOCK).open("a") as file:
        lock(file)
        yield


def is_building(folder: Path) -> bool:
    """Return whether a process is building into ``folder`` now."""
    try:
        file = (folder / LOCK).open("a")
    except OSError:
        return False
    with file:
        return is_locked(file)


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a temporary name beside ``file``, and rename it to ``file`` when the block succeeds."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
