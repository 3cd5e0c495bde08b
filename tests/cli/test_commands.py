"""The command line without a running pool: help, errors, files, the doctor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from djinn_lab.cli import doctor, main
from djinn_lab.cli.dashboard import dashboard_folder, serve_command
from djinn_lab.pool.notebooks.captured_kernel import kernel_folder, kernel_spec
from djinn_lab.protocol.user_limits import CONNECTIONS_MAX, SESSIONS_MAX


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool, no profiles and no kernels but this test's own."""
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("DJINN_POOL", "DJINN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for command in (
        *("pool", "jobs", "cancel", "profiles", "wizard", "setup"),
        *("dashboard", "doctor", "kernel", "bench"),
    ):
        assert command in shown


@pytest.mark.parametrize("arguments", [("pool", "status"), ("jobs",), ("cancel", "abc"), ("jobs", "--json")])
def test_without_a_pool_two_lines_say_so_and_what_to_do(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "No pool is running on this machine.\nStart one with: djinn-lab pool start\n"


def test_stopping_no_pool_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pool", "stop") == 1
    assert "No pool is running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("pool", "start", "--memory", "lots"), "'lots' is not a size"),
        (("pool", "start", "--memory", "10"), "such as --memory 10GB"),
        (("pool", "start", "--devices", "tpu:3"), "'tpu:3' names no devices"),
        (("pool", "start", "--profile", "missing"), "No profile is called 'missing'"),
        (("profiles", "missing"), "No profile is called 'missing'"),
        (("setup", "--set", "pool.devices"), "has no value"),
        (("kernel", "install", "--user", "--prefix", "/x"), "name two different places"),
        (("kernel", "uninstall"), "The kernel is not installed"),
    ],
)
def test_errors_are_lines_and_never_a_traceback(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 1
    shown = capsys.readouterr().err
    assert reason in shown
    assert "Traceback" not in shown
    assert len(shown.splitlines()) <= 2


def test_a_wrong_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("jobs", "--colour", "red") == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (("status",), "'status'. Did you mean 'pool status'?"),
        (("statsu", "--json"), "'statsu'. Did you mean 'pool status'?"),
        (("publish", "x"), "'publish'. Did you mean 'data publish'?"),
        (("job",), "'job'. Did you mean 'jobs'?"),
        (("pool", "statsu"), "'statsu'. Did you mean 'status'"),
        (("xyzzy",), "'xyzzy'. "),
    ],
)
def test_an_unknown_command_names_the_nearest_also_of_groups(
    arguments: tuple[str, ...], suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert f"No such command {suggested}" in capsys.readouterr().err


def test_profiles_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("profiles") == 0
    shown = capsys.readouterr().out
    assert "llm_serving" in shown
    assert "djinn-lab wizard" in shown
    assert run("profiles", "llm_serving") == 0
    assert "scheduler.memory_reserve_fraction" in capsys.readouterr().out


def test_setup_saves_a_profile_that_profiles_then_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("wizard", "--yes", "--profile", "mine", "--set", "pool.devices=cpu:2")
    assert run(*words, "--dry-run") == 0
    assert not (tmp_path / "config" / "profiles.toml").exists()
    assert run(*words) == 0
    assert "mine" in (tmp_path / "config" / "profiles.toml").read_text()
    capsys.readouterr()
    assert run("profiles", "mine") == 0
    assert "cpu:2" in capsys.readouterr().out


def test_setup_recognises_the_workload_of_a_file_or_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["loss.backward()"]},
        {"cell_type": "code", "source": ["%%bash\n", "echo 'no Python'"]},
        {"cell_type": "code", "source": ["%%djinn\n", "y = model.generate(ids)"]},
    ]
    notebook, script, broken = (tmp_path / name for name in ("a.ipynb", "a.py", "b.ipynb"))
    notebook.write_text(json.dumps({"cells": cells}))
    script.write_text("optimizer.step()\n")
    broken.write_text("[1]")
    for file, workload in ((notebook, "llm_serving"), (script, "research_training")):
        assert run("setup", "--yes", "--dry-run", "--code", str(file)) == 0
        assert f"Workload: {workload}. Line " in capsys.readouterr().out
    for file in (broken, tmp_path / "gone.py"):
        assert run("setup", "--yes", "--dry-run", "--code", str(file)) != 0
        assert f"--code {file} cannot be read" in capsys.readouterr().err.replace("\n", "")


def test_the_doctor_reports_and_succeeds_without_a_pool(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["Python"]["status"] == checks["torch"]["status"] == "ok"
    assert checks["pool"]["status"] == "warn"
    assert "djinn-lab pool start" in checks["pool"]["fix"]
    assert "forbidden acts refused" in checks["isolation"]["evidence"]
    assert run("doctor") == 0
    assert "warn pool: No pool is running" in capsys.readouterr().out


@pytest.mark.parametrize(("version", "status"), [("2.12.1", "fail"), ("2.13.0+cpu", "ok"), ("3.0.0", "fail")])
def test_the_doctor_takes_the_torch_that_the_package_asks_for(
    version: str, status: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [bound] = [one for one in project["dependencies"] if one.startswith("torch")]
    monkeypatch.setattr(doctor, "installed_version", lambda package: version)
    found = doctor.check_torch()
    assert found.status == status
    for part in bound.removeprefix("torch").split(","):
        assert status == "ok" or part in found.fix


def test_the_doctor_fails_on_files_that_others_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    (runtime / "pool.json").write_text("{}")
    (runtime / "pool.json").chmod(0o644)
    assert run("doctor", "--json") == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["pool"]["status"] == "fail"
    assert "can be read" in checks["pool"]["evidence"]
    runtime.chmod(0o755)
    assert run("doctor", "--json") == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["runtime directory"]["fix"] == f"chmod 700 {runtime}"


def test_the_doctor_fails_on_a_broken_profiles_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "profiles.toml").write_text("default = [")
    assert run("doctor", "--json") == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert "is not valid TOML" in checks["profiles"]["evidence"]


def test_the_kernel_is_installed_with_this_python_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("kernel", "install", "--user") == 0
    spec = json.loads((tmp_path / "jupyter" / "kernels" / "djinn" / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    assert spec["argv"][1:3] == ["-m", "ipykernel_launcher"]
    assert "--IPKernelApp.extensions=djinn_lab" in spec["argv"]
    assert spec["display_name"] == "Python (Djinn)"
    assert run("doctor") == 0
    assert "Python (Djinn) in" in capsys.readouterr().out
    assert run("kernel", "uninstall") == 0
    assert not (tmp_path / "jupyter" / "kernels" / "djinn").exists()


def test_the_shipped_kernel_names_no_machine() -> None:
    template = json.loads((kernel_folder() / "kernel.json").read_text())
    assert template["argv"][0] == "python"
    assert kernel_spec(template)["argv"][0] == sys.executable


def test_the_dashboard_is_served_to_this_machine_only() -> None:
    command = serve_command(dashboard_folder(), 5006)
    assert command[command.index("--address") + 1] == "127.0.0.1"
    assert "127.0.0.1:5006" in command
    assert (dashboard_folder() / "main.py").is_file()


def test_dashboard_on_a_used_port_exits_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run("dashboard", "--port", str(taken.getsockname()[1]), "--no-show") == 1
    assert "cannot be used" in capsys.readouterr().err


def test_bench_outside_a_checkout_says_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import djinn_lab

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(djinn_lab, "__path__", [str(tmp_path / "djinn_lab")])
    assert run("bench") == 1
    assert "make bench" in capsys.readouterr().err


def test_version_names_all_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("version") == 0
    shown = capsys.readouterr().out
    for word in ("djinn-lab", "protocol", "torch", "Python"):
        assert word in shown
    assert run("--version") == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("command", ["queue", "why", "pool"])
def test_a_command_that_asks_the_pool_starts_without_the_queue_itself(command: str) -> None:
    code = (
        "import sys; from djinn_lab.cli.app import build_app; import djinn_lab.client.rest;"
        f"build_app({command!r}); print(sorted({{'torch', 'djinn_lab.jobs'}} & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_the_command_starts_without_torch() -> None:
    code = "import sys; from djinn_lab.cli.app import build_app; build_app(); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


def test_the_module_and_the_script_are_the_same_command() -> None:
    for words in (
        [sys.executable, "-m", "djinn_lab.cli"],
        [str(Path(sys.executable).with_name("djinn-lab"))],
    ):
        done = subprocess.run([*words, "version"], capture_output=True, text=True, env=os.environ, check=True)
        assert done.stdout.startswith("djinn-lab ")


@pytest.mark.parametrize("command", ["why", "cancel", "preempt"])
def test_empty_id_of_a_job_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "") != 0
    assert "The job's id is empty. See the ids" in " ".join(capsys.readouterr().err.split())


def test_pool_start_names_the_limits_that_a_user_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pool", "start", "--help") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"Sessions that a user may have at once. Default: {SESSIONS_MAX:,}." in text
    assert f"Connections of a user at once. Default: {CONNECTIONS_MAX:,}." in text


def test_directory_that_cannot_be_written_is_said_at_once_and_by_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", "/proc/djinn-lab")
    assert run("doctor", "--json") == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["runtime directory"]["status"] == "fail"
    assert "/proc/djinn-lab cannot be written" in checks["runtime directory"]["evidence"]
    assert "DJINN_RUNTIME_DIR" in checks["runtime directory"]["fix"]
    assert run("pool", "start") == 1
    assert capsys.readouterr().err.startswith("/proc/djinn-lab cannot be written: ")
