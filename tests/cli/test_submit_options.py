"""What ``djinn-lab submit`` refuses of its options before it asks a pool."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from djinn_lab.cli import main


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-p", "lr"], "it has no ="),
        (["-p", "rate=0.1"], "the cell tagged parameters has no rate; it assigns lr"),
        (["--parameter", "lr=fast"], "lr is 'fast', and its default in the cell tagged parameters is 0.1"),
        (["--after", "a:soon"], "'a:soon', which is no dependency; write JOB, JOB:any"),
        (["--after", "a,data: x"], "no dependency"),
        (["--after", "a", "--after-timeout", "soon"], "--after-timeout"),
        (["--target", "gpu="], "'gpu=', which is no label; write key=value, such as gpu=h200"),
        (["-t", "cpu:0,,cpu:1"], "which is neither a device nor a label"),
        (["--tolerate", "a", "--tolerate", "b c"], "'b c', which is no taint"),
    ],
)
def test_submit_with_invalid_options_exits_with_the_reason(
    options: list[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.delenv("DJINN_POOL", raising=False)
    cell = nbformat.v4.new_code_cell("lr = 0.1", metadata={"tags": ["parameters"]})
    path = tmp_path / "train.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    with pytest.raises(SystemExit) as ended:
        main(("submit", str(path), *options))
    assert ended.value.code == 1
    assert reason in " ".join(capsys.readouterr().err.split())
