"""``python -m djinn_lab.pool``: the pool's process. People use ``djinn-lab pool start``."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from typing import TYPE_CHECKING

from djinn_lab.config.fields import BUILT_IN_ESTIMATOR
from djinn_lab.errors import CannotStartNow, DjinnError, OptionError
from djinn_lab.jobs.autoscaling import IDLE_S, ScalingLimits
from djinn_lab.jobs.decision import DEFAULT
from djinn_lab.memory import POLICIES
from djinn_lab.pool.certificates import ServerCertificate, given_certificate, own_certificate
from djinn_lab.pool.database.address import DATABASE_VARIABLE, checked_url, sqlite_url
from djinn_lab.pool.database.engine import DATABASE_FILE, DatabaseLost
from djinn_lab.pool.devices.plans import checked_region_compiler, plan_devices
from djinn_lab.pool.engines import ENGINES, LOCAL_ENGINE, RAY_ENGINE, check_engine, check_nodes
from djinn_lab.pool.identity.settings import decoded
from djinn_lab.pool.policy_file import read_policy
from djinn_lab.pool.server import LOOPBACK, PoolOptions, run_pool
from djinn_lab.pool.sessions.detached import KEPT_S
from djinn_lab.pool.supervisor import CANNOT_START, CANNOT_START_NOW, RESTARTED_VARIABLE
from djinn_lab.pool.user_limits import REQUESTS_PER_S, UserLimits
from djinn_lab.protocol.compiling import INDUCTOR
from djinn_lab.protocol.isolation import ISOLATION_DEFAULT, ISOLATIONS
from djinn_lab.protocol.notebooks import OPEN_TO
from djinn_lab.protocol.runtime_file import data_directory, note_start_waits
from djinn_lab.protocol.user_limits import CONNECTIONS_MAX, SESSIONS_MAX

if TYPE_CHECKING:
    from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster

CLUSTER_BACK_WITHIN_S = 600.0
"""So long a server that is started again waits for its Ray cluster, the loss of which may be why."""


def main() -> int:
    arguments = _parser().parse_args()
    users_umask = os.umask(0o077)  # database, log and blobs are this user's alone
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        cluster = _cluster(arguments)
        plans = (plan_devices if cluster is None else cluster.plan)(
            arguments.devices,
            arguments.memory_bytes,
            arguments.threads,
            host_bytes=arguments.host_bytes,
            disk_bytes=arguments.disk_bytes,
            link_bytes_per_s=arguments.link_bytes_per_s,
            region_compiler=checked_region_compiler(arguments.region_compiler),
        )
        command = shlex.split(arguments.worker_command) if arguments.worker_command else None
        options = PoolOptions(
            plans,
            command,
            _database(),
            arguments.port,
            arguments.blob_bytes_max,
            arguments.memory_policy,
            read_policy(arguments.queue_policy),
            arguments.notebook_slots,
            arguments.notebooks_for,
            standby=arguments.standby,
            notebook_umask=users_umask,
            host=arguments.host,
            certificate=_certificate(arguments),
            detached_s=arguments.detached_s,
            limits=UserLimits(
                arguments.sessions_per_user,
                arguments.connections_per_user,
                arguments.upload_bytes_per_user,
                arguments.requests_per_s,
            ),
            isolation=arguments.isolation,
            accept_weak_isolation=arguments.accept_weak_isolation,
            identity=decoded(arguments.identity),
            cost_estimator=arguments.cost_estimator,
            cluster=cluster,
            scaling=_scaling(arguments, cluster),
        )
        run_pool(options)
    except DatabaseLost as error:
        logging.getLogger(__name__).critical("%s", error)
        return 1
    except DjinnError as error:
        logging.getLogger(__name__).critical("%s", error)
        if RESTARTED_VARIABLE in os.environ:
            note_start_waits(error.message)
        return CANNOT_START_NOW if isinstance(error, CannotStartNow) else CANNOT_START
    return 0


def _cluster(arguments: argparse.Namespace) -> Cluster | None:
    check_engine(arguments.engine, arguments.address)
    if arguments.engine != RAY_ENGINE:
        return None
    from djinn_lab.pool.launchers.ray_cluster.cluster import connect

    return connect(arguments.address, CLUSTER_BACK_WITHIN_S if RESTARTED_VARIABLE in os.environ else 0.0)


def _scaling(arguments: argparse.Namespace, cluster: Cluster | None) -> ScalingLimits | None:
    check_nodes(arguments.address, arguments.nodes_max, arguments.nodes_idle_s)
    if cluster is None or arguments.nodes_max is None:
        return None
    if arguments.nodes_max < (there := len(cluster.used)):
        raise OptionError(
            f"--nodes-max {arguments.nodes_max}: the cluster has {there} nodes with devices already.",
            "Give at least as many; to use fewer of them, give --devices that fewer have.",
        )
    idle_s = IDLE_S if arguments.nodes_idle_s is None else arguments.nodes_idle_s
    return ScalingLimits(arguments.nodes_max, idle_s)


def _certificate(arguments: argparse.Namespace) -> ServerCertificate | None:
    if arguments.tls_certificate:
        return given_certificate(arguments.tls_certificate, arguments.tls_key)
    return own_certificate(data_directory() / "tls", arguments.host) if arguments.tls else None


def _database() -> str:
    """Read the database's URL from the environment, since every user can read a command line; workers do not
    inherit it."""
    given = os.environ.pop(DATABASE_VARIABLE, None)
    return checked_url(given) if given else sqlite_url(data_directory() / DATABASE_FILE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m djinn_lab.pool", description=__doc__)
    parser.add_argument("--devices", help="auto, cuda, or cpu:N")
    parser.add_argument("--engine", default=LOCAL_ENGINE, choices=ENGINES, help="where workers run")
    parser.add_argument("--address", help="of a Ray cluster: auto, or HOST:PORT; default: start one here")
    parser.add_argument("--nodes-max", type=int, help="ask the cluster for nodes, up to so many in all")
    parser.add_argument("--nodes-idle-s", type=float, help="give requested nodes back that are idle so long")
    parser.add_argument("--memory-bytes", type=int, help="limit of each device")
    parser.add_argument("--threads", type=int, help="of each device's worker")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--blob-bytes-max", type=int, help="of uploaded tensors; default half of the shared memory"
    )
    parser.add_argument("--host-bytes", type=int, help="of parked sessions, for each device")
    parser.add_argument("--disk-bytes", type=int, default=0, help="of parked sessions, for each device")
    parser.add_argument("--link-bytes-per-s", type=int, help="of a CPU device's copies; 0: unlimited")
    parser.add_argument("--memory-policy", default="default", choices=sorted(POLICIES))
    parser.add_argument("--queue-policy", default=DEFAULT.name, help="a policy's name, or its file")
    parser.add_argument("--notebook-slots", type=int, default=2, help="notebooks that run at once")
    parser.add_argument(
        "--notebooks-for", default="owner", choices=OPEN_TO, help="users that may submit them"
    )
    parser.add_argument("--isolation", default=ISOLATION_DEFAULT, choices=ISOLATIONS)
    parser.add_argument("--accept-weak-isolation", action="store_true")
    parser.add_argument("--standby", action="store_true", help="wait while another pool leads")
    parser.add_argument("--host", default=LOOPBACK, help="the address to listen on")
    parser.add_argument("--tls", action="store_true", help="encrypt, with a certificate of its own")
    parser.add_argument("--tls-certificate", help="the certificate to use instead, as PEM")
    parser.add_argument("--tls-key", help="its key")
    parser.add_argument("--detached-s", type=float, default=KEPT_S, help="a session waits for its client")
    parser.add_argument("--sessions-per-user", type=int, default=SESSIONS_MAX)
    parser.add_argument("--connections-per-user", type=int, default=CONNECTIONS_MAX)
    parser.add_argument("--upload-bytes-per-user", type=int, help="default: half, once there are two users")
    parser.add_argument("--requests-per-s", type=float, default=REQUESTS_PER_S, help="of a user")
    parser.add_argument("--cost-estimator", default=BUILT_IN_ESTIMATOR, help="of an installed package")
    parser.add_argument("--region-compiler", default=INDUCTOR, help="of cells with a tolerance")
    parser.add_argument("--identity", default="{}", help="identity providers, as JSON")
    parser.add_argument("--worker-command", help="the worker's command line, before its own options")
    return parser


if __name__ == "__main__":
    sys.exit(main())
