"""The pages name every option, command, variable, error, address and metric, and quote real messages."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import BaseRoute

from djinn_lab import errors
from djinn_lab.dashboard.shell import PAGES as DASHBOARD_PAGES
from djinn_lab.jobs import JobState, Priority
from djinn_lab.magics.line_commands import COMMANDS
from djinn_lab.magics.options import make_parser
from djinn_lab.pool.api.app import create_app
from djinn_lab.pool.assembly import assemble
from djinn_lab.pool.authentication import Role
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.address import sqlite_url
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.launchers.local import LocalLauncher

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ("djinn_lab", "magics", "dashboard", "kernels")
PAGES = sorted(DOCS.glob("*.md"))
LINKING = [*PAGES, *sorted(DOCS.glob("decisions/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def source_files() -> Iterator[Path]:
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".json") and "__pycache__" not in path.parts:
                yield path


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolContext]:
    """A pool's parts, without devices and without a server."""
    directory = tmp_path_factory.mktemp("pool")
    blobs = BlobStore(directory, 2**20)
    launcher = LocalLauncher(directory)
    store = Store(sqlite_url(directory / "pool.sqlite3"))
    made = assemble("documented", "token", launcher, (), blobs, store, lambda: None)
    yield made
    made.store.close()


def test_every_cell_option_is_on_the_notebook_page() -> None:
    text = page("notebook")
    options = [name for action in make_parser("%%djinn")._actions for name in action.option_strings]
    assert options
    assert [name for name in options if f"`{name}" not in text] == []


def test_every_line_command_has_its_row_and_every_row_its_command() -> None:
    table = page("notebook").split("## `%djinn COMMAND`")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)", row)[0] for row in rows) == sorted(COMMANDS)


def test_every_environment_variable_is_on_the_pool_page() -> None:
    found = {
        name for path in source_files() for name in re.findall(r"\bDJINN_[A-Z]+[A-Z_]*\b", path.read_text())
    }
    assert "DJINN_POOL" in found
    text = page("pool")
    assert sorted(name for name in found if f"| `{name}` |" not in text) == []


def test_every_error_class_is_on_the_troubleshooting_page() -> None:
    classes = [
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, BaseException) and not name.startswith("_")
    ]
    text = page("troubleshooting")
    assert sorted(name for name in classes if f"`{name}`" not in text) == []


def test_every_address_is_on_the_pool_page_with_its_methods(context: PoolContext) -> None:
    rows = [line.split("|") for line in page("pool").splitlines() if re.match(r"\| [A-Z, ]+ \| `/", line)]
    documented = {
        (method.strip(), re.split(r"[?`]", cells[2].strip().strip("`"))[0])
        for cells in rows
        for method in cells[1].split(",")
    }
    app = create_app(context)
    described = {(m.upper(), path) for path, methods in app.openapi()["paths"].items() for m in methods}
    assert documented == described | {("GET", "/openapi.json")}
    assert all(_is_named(route) for route in app.routes)


def _is_named(route: BaseRoute) -> bool:
    return f"`{getattr(route, 'path', '')}" in page("pool")


def test_every_metric_is_on_the_pool_page(context: PoolContext) -> None:
    content, _ = context.metrics.render(context.driver)
    names = re.findall(r"^# TYPE (\w+) (?:gauge|histogram|counter)$", content.decode(), re.MULTILINE)
    names = [name for name in names if not name.endswith("_created")]
    assert names
    assert [name for name in names if f"`{name}" not in page("pool")] == []


def test_every_state_priority_and_role_is_explained() -> None:
    pool, security = page("pool"), page("security")
    assert [state for state in JobState if f"`{state}`" not in pool] == []
    assert [priority for priority in Priority if f"`{priority}`" not in pool] == []
    assert [role for role in Role if f"| `{role.label}` |" not in security] == []


def test_quoted_messages_are_the_products_own() -> None:
    """Each piece between the dots stands in one string of the source (some are capitalised on their way)."""
    known = "\n".join(_strings_in_source()).lower()
    lines = _prose(page("troubleshooting")).splitlines()
    quoted = {code for line in lines for code in re.findall(r"`([^`]+)`", line)}
    first_cells = {cell for line in lines for cell in re.findall(r"^\| `([^`]+)` \|", line)}
    messages = first_cells | {code for code in quoted if "..." in code}
    pieces = {piece.strip().lower() for message in messages for piece in message.split("...")}
    assert len(pieces) > 30
    assert sorted(piece for piece in pieces if piece not in known) == []


def _prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _strings_in_source() -> set[str]:
    found: set[str] = set()
    for path in source_files():
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


@pytest.mark.parametrize("path", LINKING, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|txt|ipynb))`", path.read_text()))
    assert [
        name for name in named if not ((ROOT / name).exists() or (ROOT / "djinn_lab" / name).exists())
    ] == []


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", page("index")))
    assert listed == {path.name for path in PAGES} - {"index.md"}


@pytest.mark.parametrize("path", LINKING, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in _anchors(linked), f"{linked.name} has no heading for #{anchor}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_and_parameter_of_the_dashboard_is_on_its_page() -> None:
    """``theme`` is read by Panel itself."""
    [row] = re.findall(r"^\| `page` \|.*$", page("dashboard"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) - {"page"} == set(DASHBOARD_PAGES)
    addresses = page("dashboard").partition("## Addresses")[2].partition("\n## ")[0]
    documented: set[str] = set()
    for line in addresses.splitlines():
        if line.startswith("| `"):
            documented |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
    used = set()
    for path in (ROOT / "dashboard").rglob("*.py"):
        text = path.read_text()
        used |= set(re.findall(r"route\.(?:get|number)\(\"(\w+)\"", text))
        for call in re.findall(r"route\.update\(([^)]*)", text):
            used |= set(re.findall(r"(\w+)=", call))
    assert used <= documented
    assert documented - used <= {"theme"}


def test_every_make_target_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (*LINKING, *(ROOT / "tests/sweeps").rglob("*.py")):
        named = set(re.findall(r"`make ([a-z-]+)", path.read_text()))
        assert named <= targets, path
