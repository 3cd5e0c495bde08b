"""The measure of the source tree, on a small one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.house import long_lines, main, measure, tree_of
from benchmarks.house_words import WORDS, words_in_page, words_in_python

ROOT = Path(__file__).parents[2]
FILES = {
    "djinn_lab/__init__.py": "",
    "djinn_lab/errors.py": "class DjinnError(Exception):\n    pass\n",
    "djinn_lab/jobs/__init__.py": "from djinn_lab.jobs.machine.queue import Queue as Queue\n",
    "djinn_lab/jobs/machine/queue.py": (
        "from djinn_lab.errors import DjinnError\n\n\nclass Queue(DjinnError):\n    pass\n"
    ),
    "djinn_lab/pool/api.py": (
        "from typing import Any\n\nfrom djinn_lab import errors\nfrom djinn_lab.jobs import Queue\n\n\n"
        "class Api:\n    def call(self, what: dict[str, Any], *more: Any) -> Any:\n        return Queue\n"
    ),
    "magics/cell.py": "import djinn_lab.errors\n\n\nclass Queue:\n    moved_aside = 1\n",
    "djinn_lab/pool/native/fast.cpp": "int x;\nint y;\n",
    "dashboard/static/app.js": "// who waits\n",
    "tests/test_one.py": 'TEXT = "somebody waits"\n',
    "docs/page.md": "A cell moves aside.\n\n" + "word " * 40 + "\n\n| " + "word " * 40 + "|\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_small_tree_is_measured(tree: Path) -> None:
    house = measure(tree)
    assert house.files == 6
    assert {name: count for name, count in house.lines.items() if count} == {
        "djinn_lab": 2,
        "jobs": 6,
        "pool": 9,
        "magics": 5,
        "C++": 2,
        "pages (HTML, JavaScript)": 1,
        "tests (beside the product)": 1,
    }
    assert house.file_lengths.longest == 9
    assert (house.function_lengths.count, house.function_lengths.median) == (1, 2)
    assert house.one_importer == ["djinn_lab.jobs", "djinn_lab.jobs.machine.queue"]
    assert house.doubled_classes == {"Queue": ["djinn_lab.jobs.machine.queue", "djinn_lab.magics.cell"]}
    assert house.signatures_with_any == 1
    assert house.long_prose == {"docs/page.md": 1}
    assert house.words == {"product": 1, "tests and benchmarks": 1, "docs": 1, "pages": 1}


def test_a_revision_is_measured_as_it_was(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    for step in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *step], check=True)
    (tree / "djinn_lab/pool/api.py").unlink()
    assert main(["--root", str(tree), "--revision", "HEAD", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 6
    assert main(["--root", str(tree)]) == 0
    shown = capsys.readouterr().out
    assert "Python files of the product" in shown
    assert measure(tree).files == 5


def test_an_unknown_revision_is_an_error(tree: Path) -> None:
    subprocess.run(["git", "-C", str(tree), "init", "-q"], check=True)
    with pytest.raises(subprocess.CalledProcessError), tree_of(tree, "nowhere"):
        pass


def test_names_count_as_the_words_they_are_made_of() -> None:
    assert words_in_python("class MovedAside:\n    in_line = 1\n").total() == 2
    assert words_in_python("# somebody waits\nreason = f'{job} goes on'\n").total() == 2


def test_what_is_quoted_does_not_count() -> None:
    assert words_in_python('"""It says "moves aside", and calls ``move_aside``."""\n').total() == 0
    assert (
        words_in_page('`moves aside`, "in line" and [a link](who.md#who)\n```\nsomebody\n```\n').total() == 0
    )
    assert words_in_page("It moves aside.").total() == 1


def test_lines_of_tables_and_code_may_be_long() -> None:
    long = "word " * 40
    assert long_lines(f"short\n{long}\n| {long}\n```\n{long}\n```\n    {long}\n{long}") == [2, 8]


def test_every_replaced_word_has_its_place_on_the_page_about_language() -> None:
    page = (ROOT / "docs/language.md").read_text()
    missing = {say for word in WORDS for say in word.say.split(", ") if say not in page}
    assert missing == set()
