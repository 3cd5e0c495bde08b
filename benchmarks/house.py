"""``python -m benchmarks.house [--revision REV] [--json]``: how large the source is, and how readable.

Counts of files and lines, lengths of files and functions, modules that one other imports, names that two
classes share, words that docs/language.md replaces, long lines of prose, and ``Any`` in signatures. With
``--revision`` another commit's tree is measured, so that before and after come from one script.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.house_words import words_in, words_in_page, words_in_python
from benchmarks.samples import percentile

PACKAGE = "djinn_lab"
LINKED = ("magics", "dashboard", "kernels")
"""Packages at the top of the repository, which links make parts of :data:`PACKAGE`."""
BESIDE = ("benchmarks", "tests")
NATIVE = (".cpp", ".h", ".hpp")
LISTS_OF_WORDS = ("house_words.py", "test_house.py")
"""The patterns of the words, and the test of their count: not counted themselves."""
PAGES = (".html", ".js")
PROSE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PROSE_CHARS_MAX = 140
SHOWN_MAX = 12


@dataclass(frozen=True)
class Lengths:
    """In lines."""

    count: int
    median: float
    p90: float
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Lengths:
        ordered = sorted(map(float, lengths)) or [0.0]
        return cls(len(lengths), percentile(ordered, 0.5), percentile(ordered, 0.9), int(ordered[-1]))


@dataclass(frozen=True)
class House:
    """``lines``: of Python by package of the product, then of what is beside it, C++ and pages.
    ``one_importer``: modules of the product. ``doubled_classes``: names with their modules. ``words``: uses
    of words that docs/language.md replaces, by kind of file; ``words_by_say``: by the field's word for them.
    ``long_prose``: lines above PROSE_CHARS_MAX by page, tables and code excepted."""

    files: int
    lines: dict[str, int]
    file_lengths: Lengths
    function_lengths: Lengths
    one_importer: list[str]
    doubled_classes: dict[str, list[str]]
    words: dict[str, int]
    words_by_say: dict[str, int]
    long_prose: dict[str, int]
    signatures_with_any: int


class Source:
    """One Python file of the product, parsed. ``package``: the part of the product that it belongs to, the
    product itself for what lies directly in it."""

    def __init__(self, path: Path, module: str, package: str) -> None:
        self.module = module
        self.package = package
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.lines = self.text.count("\n")


@contextmanager
def tree_of(root: Path, revision: str | None) -> Iterator[Path]:
    """The folder to measure: ``root``, or a temporary one with its tree at ``revision``. Raises
    CalledProcessError for a revision that git does not know."""
    if revision is None:
        yield root
        return
    command = ["git", "-C", str(root), "archive", "--format=tar", revision]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def measure(root: Path) -> House:
    """Measure the tree below ``root``."""
    sources = product_of(root)
    words, by_say = _words(root, sources)
    functions = [length for source in sources for length in _function_lengths(source.tree)]
    return House(
        files=len(sources),
        lines=_lines(root, sources),
        file_lengths=Lengths.of([source.lines for source in sources]),
        function_lengths=Lengths.of(functions),
        one_importer=modules_with_one_importer(sources),
        doubled_classes=doubled_classes(sources),
        words=words,
        words_by_say=by_say,
        long_prose={name: count for name, text in pages_of(root) if (count := len(long_lines(text)))},
        signatures_with_any=sum(_signatures_with_any(source.tree) for source in sources),
    )


def product_of(root: Path) -> list[Source]:
    """Every Python file of the product, by module name."""
    found = []
    for folder in (PACKAGE, *LINKED):
        prefix = PACKAGE if folder == PACKAGE else f"{PACKAGE}.{folder}"
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            named = parts[:-1] if parts[-1] == "__init__" else parts
            package = parts[0] if folder == PACKAGE and len(parts) > 1 else folder
            found.append(Source(path, ".".join((prefix, *named)), package))
    return found


def pages_of(root: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every page of prose."""
    for path in (*(root / name for name in PROSE), *sorted((root / "docs").rglob("*.md"))):
        if path.exists():
            yield path.relative_to(root).as_posix(), path.read_text()


def _lines(root: Path, sources: Sequence[Source]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for source in sources:
        counted[source.package] += source.lines
    for folder in BESIDE:
        counted[f"{folder} (beside the product)"] = _lines_below(root / folder, (".py",))
    counted["C++"] = sum(_lines_below(root / folder, NATIVE) for folder in (PACKAGE, *LINKED))
    counted["pages (HTML, JavaScript)"] = _lines_below(root / "dashboard", PAGES)
    return dict(sorted(counted.items()))


def _lines_below(folder: Path, endings: Sequence[str]) -> int:
    return sum(path.read_text().count("\n") for path in folder.rglob("*") if path.suffix in endings)


def _function_lengths(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1


def modules_with_one_importer(sources: Sequence[Source]) -> list[str]:
    """Modules that exactly one other module of the product imports."""
    known = {source.module for source in sources}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        for name in _imported(source.tree, known):
            if name != source.module:
                importers[name].add(source.module)
    return sorted(name for name, found in importers.items() if len(found) == 1)


def _imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield inner
                elif node.module in known:
                    yield node.module


def doubled_classes(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Names of classes that stand in several modules, private ones not among them."""
    where: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(source.module)
    return {name: sorted(modules) for name, modules in sorted(where.items()) if len(modules) > 1}


def _words(root: Path, sources: Sequence[Source]) -> tuple[dict[str, int], dict[str, int]]:
    by_kind: dict[str, Counter[str]] = {
        "product": Counter(),
        "tests and benchmarks": Counter(),
        "docs": Counter(),
        "pages": Counter(),
    }
    for source in sources:
        by_kind["product"] += words_in_python(source.text)
    for folder in BESIDE:
        for path in sorted((root / folder).rglob("*.py")):
            if path.name not in LISTS_OF_WORDS:
                by_kind["tests and benchmarks"] += words_in_python(path.read_text())
    for _, text in pages_of(root):
        by_kind["docs"] += words_in_page(text)
    for path in sorted((root / "dashboard").rglob("*")):
        if path.suffix in PAGES:
            by_kind["pages"] += words_in(path.read_text())
    total = sum(by_kind.values(), Counter[str]())
    return {kind: count.total() for kind, count in by_kind.items()}, dict(total.most_common())


def long_lines(text: str) -> list[int]:
    """Numbers of the lines of prose that are longer than PROSE_CHARS_MAX; tables and code blocks may be."""
    found, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        code = fenced or line.startswith("    ")
        if len(line) > PROSE_CHARS_MAX and not (code or line.lstrip().startswith("|")):
            found.append(number)
    return found


def _signatures_with_any(tree: ast.AST) -> int:
    """How many signatures say ``Any``, once or more."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            annotations = [one.annotation for one in arguments if one is not None]
            count += any(map(_says_any, (*annotations, node.returns)))
    return count


def _says_any(annotation: ast.expr | None) -> bool:
    parts = () if annotation is None else ast.walk(annotation)
    return any(isinstance(part, ast.Name) and part.id == "Any" for part in parts)


def table(house: House) -> str:
    """The figures as lines for people."""
    files, functions = house.file_lengths, house.function_lengths
    rows = [
        ("Python files of the product", f"{house.files}"),
        *((f"lines: {name}", f"{count:,}") for name, count in house.lines.items()),
        ("file length: median, p90, longest", f"{files.median:.0f}, {files.p90:.0f}, {files.longest}"),
        (
            f"function length of {functions.count:,}: median, p90, longest",
            f"{functions.median:.0f}, {functions.p90:.0f}, {functions.longest}",
        ),
        ("modules with one importer", f"{len(house.one_importer)}"),
        ("class names defined more than once", f"{len(house.doubled_classes)}"),
        *((f"replaced words: {kind}", f"{count:,}") for kind, count in house.words.items()),
        (f"prose lines over {PROSE_CHARS_MAX} characters", f"{sum(house.long_prose.values())}"),
        ("signatures with Any", f"{house.signatures_with_any}"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value:>14}" for name, value in rows]
    most = list(house.words_by_say.items())[:SHOWN_MAX]
    lines += ["", "replaced words, by what to say:", *(f"  {count:5}  {say}" for say, count in most)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.house", description=__doc__)
    parser.add_argument("--revision", help="measure this commit's tree; default: the working tree")
    parser.add_argument("--json", action="store_true", help="all that was found, as JSON")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the repository")
    options = parser.parse_args(arguments)
    with tree_of(options.root, options.revision) as root:
        house = measure(root)
    print(json.dumps(asdict(house), indent=1) if options.json else table(house))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
