"""``djinn-lab doctor``: checks everything that has to be right, and says how to fix what is not."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from djinn_lab.cli.dashboard import dashboard_folder
from djinn_lab.cli.options import AsJson
from djinn_lab.cli.output import print_json
from djinn_lab.cli.version import installed_version
from djinn_lab.config import list_profiles, profiles_path
from djinn_lab.errors import CannotStartNow, DjinnError, OptionError, PoolNotFound, UserError
from djinn_lab.native import EXTENSIONS, find
from djinn_lab.pool.notebooks.captured_kernel import KERNEL_NAME
from djinn_lab.protocol.isolation import STRONG, CanaryFindings
from djinn_lab.protocol.runtime_file import check_writable, runtime_directory
from djinn_lab.protocol.version import TORCH_BELOW, TORCH_MIN, TORCH_WANTED, VERSION, minor_of
from djinn_lab.system.host import SHARED_MEMORY
from djinn_lab.units import format_bytes, format_seconds, listed

if TYPE_CHECKING:
    from djinn_lab.pool.launchers.ray_cluster.examination import NodeFindings
    from djinn_lab.protocol.rest.status import PoolStatus

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
PYTHON_MIN = (3, 11)
SHARED_MEMORY_BYTES_MIN = 2**28
OF_EACH_NODE = ("shared memory", "runtime directory", "isolation")
"""What only a node itself can see of these checks."""
CANARY = (sys.executable, "-m", "djinn_lab.worker.sandbox.canary")
CANARY_WITHIN_S = 30.0


class Check(msgspec.Struct, frozen=True):
    """``fix``: a command or an action, empty when nothing is wrong."""

    name: str
    status: Literal["ok", "warn", "fail"]
    evidence: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return msgspec.structs.asdict(self)


def check_python() -> Check:
    evidence = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= PYTHON_MIN:
        return Check("Python", "ok", evidence)
    return Check("Python", "fail", evidence, f"Install Python {'.'.join(map(str, PYTHON_MIN))} or newer.")


def check_system() -> Check:
    evidence = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform == "linux":
        return Check("system", "ok", evidence)
    if sys.platform == "win32":
        return Check("system", "ok", f"{evidence}: for notebooks and commands; the pool runs elsewhere")
    return Check("system", "ok", f"{evidence}: a pool here is for trying out, by one user")


def check_torch() -> Check:
    """Check torch's version by its metadata, as importing torch takes seconds."""
    found = installed_version("torch")
    if TORCH_MIN <= minor_of(found) < TORCH_BELOW:
        return Check("torch", "ok", found)
    return Check("torch", "fail", found, f'pip install "{TORCH_WANTED}"')


def check_extension(name: str) -> Check:
    """Find a C++ extension's file for this Python and torch. Without it the Python implementation is used."""
    title, finding = f"{name} in C++", find(name)
    if finding.file is not None:
        return Check(title, "ok", str(finding.file))
    return Check(title, "warn", f"{finding.problem}; the Python implementation is used", finding.cure)


def check_profiles() -> Check:
    return _attempt("profiles", lambda: f"{len(list_profiles())} readable, yours in {profiles_path()}")


def check_runtime_directory() -> Check:
    """Check that a pool can write its files, and that no other user sees its token."""
    try:
        directory = runtime_directory()
        check_writable()
    except CannotStartNow as error:
        return Check("runtime directory", "fail", error.message, error.advice)
    mode = directory.stat().st_mode & 0o777
    evidence = f"{directory} has mode {mode:04o}"
    if mode & 0o077:
        return Check(
            "runtime directory", "fail", f"{evidence}: others can look into it", f"chmod 700 {directory}"
        )
    return Check("runtime directory", "ok", evidence)


def check_shared_memory() -> Check:
    if sys.platform != "linux":
        return Check("shared memory", "ok", "not on this system: tensors go through files")
    if not SHARED_MEMORY.is_dir():
        evidence = f"there is no {SHARED_MEMORY}; tensors go through files in the runtime directory, slower"
        return Check("shared memory", "warn", evidence, "In a container: mount a tmpfs at /dev/shm.")
    usage = shutil.disk_usage(SHARED_MEMORY)
    evidence = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free in {SHARED_MEMORY}"
    if usage.free >= SHARED_MEMORY_BYTES_MIN:
        return Check("shared memory", "ok", evidence)
    fix = "Tensors larger than that cannot be uploaded. In a container: start it with --shm-size=4g."
    return Check("shared memory", "warn", evidence, fix)


def check_isolation() -> Check:
    """Check what a worker of one user could do to others on this machine."""
    if sys.platform != "linux":
        return Check("isolation", "ok", "workers have a sandbox on Linux only: for one user")
    try:
        holds, evidence = _describe(_send_canary())
    except DjinnError as error:
        return Check("isolation", "warn", error.message, error.advice)
    if holds:
        return Check("isolation", "ok", evidence)
    fix = (
        "One user only, or djinn-lab pool start --accept-weak-isolation; docs/security.md has what it takes."
    )
    return Check("isolation", "warn", evidence, fix)


def _send_canary() -> CanaryFindings:
    """Raises UserError when the canary does not come back."""
    with tempfile.TemporaryDirectory(prefix="djinn-canary-") as directory:
        (Path(directory) / "secret").write_text("secret")
        try:
            answer = subprocess.run(
                [*CANARY, directory],
                capture_output=True,
                timeout=CANARY_WITHIN_S,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            return msgspec.json.decode(answer.stdout, type=CanaryFindings)
        except (subprocess.SubprocessError, msgspec.DecodeError) as error:
            raise UserError(
                f"A process in the sandbox of workers did not report: {error}.",
                "Run `python -m djinn_lab.worker.sandbox.canary DIRECTORY` to see why; users share a machine "
                "safely only where it works.",
            ) from None


def _describe(found: CanaryFindings) -> tuple[bool, str]:
    """Return whether several users may share a pool here, and what holds."""
    allowed = [attempt.act for attempt in found.attempts if not attempt.refused]
    refused = len(found.attempts) - len(allowed)
    text = f"level {found.level}: {refused} of {len(found.attempts)} forbidden acts refused"
    if allowed:
        text += f"; a worker could {listed(allowed)}"
    return found.works and found.level in STRONG and (found.level != "full" or not allowed), text


BY_ITSELF = "A %%djinn cell starts one by itself; or: djinn-lab pool start"


def check_pool() -> Check:
    """Check whether the pool that would be used answers, and speaks this version."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.protocol.configured_start import remembered_start

    try:
        client = PoolClient.find()
        status = client.status()
    except PoolNotFound as error:
        configured = remembered_start()
        fix = f"Start it again: {configured}" if configured else BY_ITSELF
        return Check("pool", "warn", error.message, fix)
    except DjinnError as error:
        return Check("pool", "fail", error.message, error.advice)
    return check_version(client.url, status)


def check_version(url: str, status: PoolStatus) -> Check:
    """Check whether cells run on this pool, and whether it knows all that this version has."""
    from djinn_lab.protocol.agreement import common_protocol, what_to_update
    from djinn_lab.protocol.messages import PROTOCOL_VERSION

    evidence = f"{url}, version {status.version}, protocol {status.protocol_version}"
    if status.protocol_version == PROTOCOL_VERSION:
        return Check("pool", "ok", evidence)
    evidence += f"; here version {VERSION}, protocol {PROTOCOL_VERSION}"
    spoken = status.protocol_versions or (status.protocol_version,)
    common, fix = common_protocol(spoken), what_to_update(spoken, status.version)
    if common is None:
        return Check("pool", "fail", f"{evidence}: no cell runs", fix)
    return Check("pool", "warn", f"{evidence}: cells run, by protocol {common}", f"For what is new: {fix}")


def check_devices() -> Check:
    """The running pool's devices, and whether each has its worker."""
    from djinn_lab.client.rest import PoolClient

    try:
        devices = PoolClient.find().status().devices
    except DjinnError:
        return Check("devices", "warn", "unknown, as no pool answers")
    levels = [f", isolation level {one.sandbox}" if one.sandbox else "" for one in devices]
    shown = (f"{one.device} {one.state}{level}" for one, level in zip(devices, levels, strict=True))
    evidence = "; ".join(shown) or "none"
    if devices and all(device.state != "lost" for device in devices):
        return Check("devices", "ok", evidence)
    return Check("devices", "fail", evidence, "djinn-lab pool stop && djinn-lab pool start")


def check_torch_of_the_pool() -> Check:
    """Compare the torch of the pool's devices with the one here: ops and numbers differ between versions."""
    from djinn_lab.client.rest import PoolClient

    title, here = "torch of the pool", installed_version("torch")
    try:
        found = sorted({one.torch_version for one in PoolClient.find().status().devices if one.torch_version})
    except DjinnError:
        return Check(title, "warn", "unknown, as no pool answers")
    evidence = f"{listed(found) or 'unknown'}; here {here}"
    if all(minor_of(one) == minor_of(here) for one in found):
        return Check(title, "ok", evidence)
    fix = (
        "Some results may differ in their last bits, and ops that the pool's lacks are refused: "
        "install the same version in both."
    )
    return Check(title, "warn", evidence, fix)


def check_jupyter() -> Check:
    lab, kernel = installed_version("jupyterlab"), installed_version("ipykernel")
    evidence = f"JupyterLab {lab}, ipykernel {kernel}"
    if kernel == "not installed":
        return Check("Jupyter", "fail", evidence, "pip install ipykernel")
    if lab == "not installed":
        return Check("Jupyter", "warn", evidence, 'pip install "djinn-lab[demo]", or use another front end')
    return Check("Jupyter", "ok", evidence)


def check_kernel() -> Check:
    if find_spec("jupyter_client") is None:
        return Check("kernel", "fail", "jupyter_client is not installed", "pip install ipykernel")
    from jupyter_client.kernelspec import KernelSpecManager

    found = KernelSpecManager(ensure_native_kernel=False).find_kernel_specs().get(KERNEL_NAME)
    if found is None:
        evidence = "Python (Djinn) is not installed; %load_ext djinn_lab works in every Python kernel"
        return Check("kernel", "warn", evidence, "djinn-lab kernel install")
    return Check("kernel", "ok", f"Python (Djinn) in {found}")


def check_dashboard() -> Check:
    if find_spec("panel") is None:
        return Check("dashboard", "fail", "panel is not installed", 'pip install "panel>=1.9.4,<2"')
    return _attempt("dashboard", lambda: f"panel {installed_version('panel')}, pages in {dashboard_folder()}")


def check_nodes(address: str) -> list[Check]:
    """Check the nodes of a Ray cluster: versions, and what only a node itself can see."""
    from djinn_lab.pool.engines import check_engine

    try:
        check_engine("ray", address)
        from djinn_lab.pool.launchers.ray_cluster.cluster import connect
        from djinn_lab.pool.launchers.ray_cluster.examination import examine_nodes, own_versions

        cluster = connect(address)
        try:
            nodes = examine_nodes(cluster)
        finally:
            cluster.leave()
    except DjinnError as error:
        return [Check("Ray cluster", "fail", error.message, error.advice)]
    wanted = own_versions()
    return [check for node in nodes for check in _of_node(node, wanted)]


def _of_node(node: NodeFindings, wanted: Mapping[str, str]) -> list[Check]:
    title = f"node {node.node}"
    if node.problem:
        fix = "Install there what this machine has: pip install 'djinn-lab[ray]'."
        return [Check(title, "fail", node.problem, fix)]
    missing = [f"{name} {one}" for name, one in wanted.items() if node.versions.get(name) != one]
    fix = f"Install there what this machine has: {', '.join(missing)}." if missing else ""
    versions = ", ".join(f"{name} {one}" for name, one in node.versions.items())
    own = [check for one in node.checks if (check := msgspec.convert(one, Check)).name in OF_EACH_NODE]
    return [
        Check(f"{title}: versions", "fail" if missing else "ok", versions, fix),
        *(msgspec.structs.replace(check, name=f"{title}: {check.name}") for check in own),
    ]


FAR_S, THIN_BYTES_PER_S = 0.1, 10**6
"""From here on the way decides how long cells take."""
BATCH_BYTES = 10**7
CUTS = 100
FEWER_CUTS = "Read fewer values in cells, and keep data on the pool: see docs/tuning.md, A pool far away."


def check_way(url: str) -> list[Check]:
    """Check a pool elsewhere, how far it is, and what to expect of cells there."""
    from djinn_lab.client.addresses import leader_url
    from djinn_lab.client.credentials import token_source
    from djinn_lab.client.link_speed import measure_link
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.client.ways import by_proxy

    try:
        leader = leader_url(url)
        client = PoolClient(leader, token_source(leader)())
        status = client.status()
        found = measure_link(client)
    except DjinnError as error:
        return [Check("pool", "fail", error.message, error.advice)]
    far, thin = found.round_trip_s >= FAR_S, min(found.up, found.down) < THIN_BYTES_PER_S
    up, down = (f"{format_bytes(rate)}/s" for rate in (found.up, found.down))
    expected = (
        f"each value that a cell reads, as by loss.item(), costs a round trip: {CUTS} of them "
        f"{format_seconds(CUTS * found.round_trip_s)} beside the computing; a tensor of "
        f"{BATCH_BYTES // 10**6} MB takes {format_seconds(found.upload_s(BATCH_BYTES))} to the pool, once"
    )
    return [
        check_version(f"{client.url}{by_proxy(client.url)}", status),
        Check("round trip", "warn" if far else "ok", format_seconds(found.round_trip_s)),
        Check("bandwidth", "warn" if thin else "ok", f"{up} to the pool, {down} from it"),
        Check("cells", "warn" if far or thin else "ok", expected, FEWER_CUTS if far or thin else ""),
    ]


def _attempt(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except DjinnError as error:
        return Check(name, "fail", error.message, error.advice)


EXAMINATIONS: tuple[Callable[[], Check], ...] = (
    check_system,
    check_python,
    check_torch,
    *(partial(check_extension, name) for name in EXTENSIONS),
    check_profiles,
    check_runtime_directory,
    check_shared_memory,
    check_isolation,
    check_pool,
    check_devices,
    check_torch_of_the_pool,
    check_jupyter,
    check_kernel,
    check_dashboard,
)


def examine(
    address: Annotated[
        str | None,
        typer.Option(
            help="Also check every node of this Ray cluster: auto, or HOST:PORT.", show_default=False
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Check only the pool at this address and the way to it: round trip, bandwidth, what to "
            "expect of cells.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, torch, the pool, its files, memory and Jupyter. Exit code 1 if a check fails."""
    if pool is not None and address is not None:
        raise OptionError("--pool checks a way, and --address a cluster.", "Give one of them at a time.")
    found = [examination() for examination in EXAMINATIONS] if pool is None else check_way(pool)
    if address is not None:
        found += check_nodes(address)
    if as_json:
        print_json([check.as_dict() for check in found])
    else:
        _print(found)
    if any(check.status == "fail" for check in found):
        raise typer.Exit(1)


def _print(found: Sequence[Check]) -> None:
    console = Console(soft_wrap=True, highlight=False, file=sys.stdout)
    for check in found:
        colour = _COLOURS[check.status]
        console.print(f"[{colour}]{check.status:4}[/{colour}] {check.name}: {escape(check.evidence)}")
        if check.fix:
            console.print(f"     {escape(check.fix)}")
