"""Kernels that are managed by a real jupyter_client through ``djinn-provisioner``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from device_kind import KIND
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from real_pool import PoolUnderTest, wait_for

from djinn_lab.magics.session_note import NOTE_VARIABLE
from djinn_lab.pool.notebooks.captured_kernel import kernel_folder, kernel_spec

pytestmark = pytest.mark.processes
TIMEOUT_S = 60.0
HOLD = """%load_ext djinn_lab
import torch
get_ipython().run_cell('%%djinn\\nheld = torch.ones(9) * 2').raise_error()
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("runtime"), f"{KIND}:1") as running:
        yield running


@pytest.fixture
def manager(pool: PoolUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelManager]:
    """Of a kernel spec that names the provisioner, which is registered as an installation registers it."""
    installed = tmp_path / "site" / "registered-0.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: registered\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text(
        "[jupyter_client.kernel_provisioners]\n"
        "djinn-provisioner = djinn_lab.kernels.provisioner:DjinnProvisioner\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "managed",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "djinn-provisioner"}},
    }
    folder = tmp_path / "data" / "kernels" / "managed"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    KernelProvisionerFactory.clear_instance()  # it knows what was registered when it was made
    managing = KernelManager(kernel_name="managed")
    yield managing
    if managing.has_kernel:
        managing.shutdown_kernel(now=True)
    KernelProvisionerFactory.clear_instance()


def run(manager: KernelManager, code: str) -> None:
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=TIMEOUT_S)
    reply = client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=lambda message: None)
    client.stop_channels()
    assert reply["content"]["status"] == "ok", reply["content"]


def ids(pool: PoolUnderTest) -> set[str]:
    return {session.session for session in pool.rest.sessions()}


def test_a_killed_kernels_session_is_closed_when_the_manager_notices(
    manager: KernelManager, pool: PoolUnderTest
) -> None:
    manager.start_kernel(env=pool.environment)
    run(manager, HOLD)
    assert len(ids(pool)) == 1
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    wait_for(lambda: not manager.is_alive())
    assert ids(pool) == set()


def test_a_restart_closes_the_old_session_and_the_new_kernel_opens_its_own(
    manager: KernelManager, pool: PoolUnderTest
) -> None:
    manager.start_kernel(env=pool.environment)
    run(manager, HOLD)
    before = ids(pool)
    manager.restart_kernel(now=True)
    assert ids(pool) & before == set()
    run(manager, HOLD)
    after = ids(pool)
    assert len(after) == 1
    assert after != before
    manager.shutdown_kernel()
    wait_for(lambda: ids(pool) == set())


def test_a_kernel_that_never_meets_a_pool_is_managed_as_ever(
    manager: KernelManager, pool: PoolUnderTest
) -> None:
    manager.start_kernel(env=pool.environment)
    run(manager, f"import os\nassert not os.path.exists(os.environ['{NOTE_VARIABLE}'])")
    manager.restart_kernel(now=True)
    run(manager, "1 + 1")
    manager.shutdown_kernel()
    assert not manager.has_kernel


def test_kernel_with_an_unreadable_note_or_a_lost_pool_restarts_and_stops(
    manager: KernelManager, pool: PoolUnderTest
) -> None:
    manager.start_kernel(env=pool.environment)
    path = manager.provisioner.note_path
    path.write_text("not a note")
    manager.restart_kernel(now=True)
    assert not path.exists()
    path.write_text('{"url": "http://127.0.0.1:9", "session": "gone"}')
    manager.shutdown_kernel(now=True)
    assert not path.exists()


def test_the_session_is_called_like_the_notebook(
    manager: KernelManager, pool: PoolUnderTest, tmp_path: Path
) -> None:
    notebook = str(tmp_path / "attention.ipynb")
    manager.start_kernel(env={**pool.environment, "JPY_SESSION_NAME": notebook})
    run(manager, HOLD)
    assert [session.name for session in pool.rest.sessions()] == ["attention"]
    manager.shutdown_kernel()
    wait_for(lambda: ids(pool) == set())


@pytest.mark.parametrize(("first", "name"), [("", "notebook in thesis"), ("{vscode}", "seminar")])
def test_without_jupyters_server_it_is_called_as_vs_code_says_or_like_the_folder(
    first: str, name: str, manager: KernelManager, pool: PoolUnderTest, tmp_path: Path
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    manager.start_kernel(env=pool.environment, cwd=str(folder))
    run(manager, first.format(vscode=f"__vsc_ipynb_file__ = {str(folder / 'seminar.ipynb')!r}\n") + HOLD)
    assert [session.name for session in pool.rest.sessions()] == [name]
    manager.shutdown_kernel()
    wait_for(lambda: ids(pool) == set())


def test_the_kernel_is_installed_with_it_only_when_asked() -> None:
    template = json.loads((kernel_folder() / "kernel.json").read_text())
    assert "kernel_provisioner" not in kernel_spec(template)["metadata"]
    asked = kernel_spec(template, provisioner=True)["metadata"]
    assert asked["kernel_provisioner"] == {"provisioner_name": "djinn-provisioner"}
    assert asked["debugger"] is True


def test_the_package_registers_it() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"]["jupyter_client.kernel_provisioners"]["djinn-provisioner"]
    module, _, name = registered.partition(":")
    assert hasattr(__import__(module, fromlist=[name]), name)
