"""What ``djinn-lab submit`` finds out about a file before it asks a pool."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from djinn_lab.cli import main

V4 = nbformat.v4


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool."""
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path / "runtime"))
    for name in ("DJINN_POOL", "DJINN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(("submit", *arguments))
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err


def written(path: Path, language: str = "python", *cells: nbformat.NotebookNode) -> str:
    metadata = {"kernelspec": {"name": "k", "display_name": "k", "language": language}}
    nbformat.write(V4.new_notebook(cells=list(cells), metadata=metadata), path)  # type: ignore[no-untyped-call]
    return str(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "There is no notebook"),
        ("print(1)", "is not a notebook"),
        ("[1, 2]", "not a notebook"),
        ("{}", "not a notebook"),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{}]}', "not a notebook"),
        ("\xff\xfe", "not a notebook"),
    ],
)
def test_a_file_that_is_no_notebook_is_named(
    content: str | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.ipynb"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    message = refusal(capsys, str(path))
    assert str(path) in message
    assert reason in message


def test_a_notebook_with_nothing_to_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "text.ipynb", "python", V4.new_markdown_cell("words"), V4.new_code_cell("  "))
    assert "no code cells" in refusal(capsys, path)


def test_a_notebook_of_another_language_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the language R" in refusal(capsys, written(tmp_path / "r.ipynb", "R", V4.new_code_cell("x <- 1")))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--priority", "urgent"), "There is no priority 'urgent'"),
        (("--restart", "sometimes"), "There is no restart policy 'sometimes'"),
        (("--restarts-max", "3"), "for notebooks that run again"),
        (("--output", "/nowhere/x.ipynb"), "There is no folder /nowhere"),
        (("--output", "."), ". is a folder; name the file"),
        (("--timeout", "soon"), "--timeout: 'soon' is not a duration"),
        ((), "No pool is running"),
    ],
)
def test_options_are_checked_before_a_pool_is_asked(
    options: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "good.ipynb", "python", V4.new_code_cell("1"))
    assert reason in refusal(capsys, path, *options)


def test_an_old_notebook_without_ids_of_cells_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.ipynb"
    path.write_text(
        '{"nbformat": 4, "nbformat_minor": 2, "metadata": {}, "cells": [{"cell_type": "code", '
        '"source": ["1"], "metadata": {}, "outputs": [], "execution_count": null}]}'
    )
    assert "No pool is running" in refusal(capsys, str(path))
