"""A Ray cluster on this machine that adds and ends nodes.

Ray's own class for it would end every other cluster of the machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

HEAD = "127.0.0.1"
HEAD_NODE = "f" * 51 + "00000"  # as the provider of nodes on this machine expects
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
"""By its class: by its name it needs a file of defaults, which packages of Ray are without."""
NAMES_OF_THE_HEAD = ("RAY_CLOUD_INSTANCE_ID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING")
STORE_BYTES = 128 * 2**20
WORKERS_MAX = 2
IDLE_MINUTES = 0.05
START_WITHIN_S = 120.0


@contextmanager
def autoscaling_cluster() -> Iterator[str]:
    """Run a head of two CPUs, beside which up to two nodes of two CPUs may come, until the block ends, and
    yield its address. Skips where Ray does not start in time."""
    from djinn_lab.pool.launchers.ray_cluster.cluster import RAY_SETTINGS

    environment = os.environ | RAY_SETTINGS
    environment |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_AUTH_MODE": "disabled"}
    environment |= {"RAY_enable_autoscaler_v2": "1"} | dict.fromkeys(NAMES_OF_THE_HEAD, HEAD_NODE)
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        config, port = Path(directory) / "autoscaler.json", _free_port()
        config.write_text(json.dumps(_configuration(port)))
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            f"--port={port}",
        ]
        command += [
            f"--autoscaling-config={config}",
            f"--node-ip-address={HEAD}",
            "--num-cpus=2",
            "--include-dashboard=false",
        ]
        command += [f"--object-store-memory={STORE_BYTES}", f"--temp-dir={directory}"]
        with (Path(directory) / "head.log").open("w+") as log:
            head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            try:
                address = f"{HEAD}:{port}"
                _until_answers(head, port, log.name)
                yield address
            finally:
                _end(head.pid)
                head.wait()


def alive_nodes(address: str) -> int:
    """Count the nodes of the cluster, in a process of its own."""
    counting = "import ray, sys; ray.init(sys.argv[1]); print(sum(row['Alive'] for row in ray.nodes()))"
    command = [sys.executable, "-c", counting, address]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _configuration(port: int) -> dict[str, object]:
    """Describe the cluster to Ray's autoscaler, whose nodes are processes of this machine."""
    kinds = {
        "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "two-cpus": {
            "resources": {"CPU": 2, "object_store_memory": STORE_BYTES},
            "node_config": {},
            "min_workers": 0,
            "max_workers": WORKERS_MAX,
        },
    }
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "autoscaling",
        "max_workers": WORKERS_MAX,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "gcs_address": f"{HEAD}:{port}",
            "head_node_id": HEAD_NODE,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": kinds,
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in lists},
    }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HEAD, 0))
        port: int = one.getsockname()[1]
        return port


def _until_answers(head: subprocess.Popen[bytes], port: int, log: str) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s and head.poll() is None:
        with socket.socket() as one:
            if one.connect_ex((HEAD, port)) == 0:
                return
        time.sleep(0.2)
    pytest.skip(f"Ray itself does not start on this machine now: {Path(log).read_text()[-500:]}")


def _end(pid: int) -> None:
    """End a head and all that it started, nodes included."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in reversed(family):
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
