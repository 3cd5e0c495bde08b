"""``djinn-lab pool``: start, stop and look at this machine's pool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from djinn_lab.cli.options import AsJson, Tls, TlsCertificate, TlsKey
from djinn_lab.cli.output import print_json, print_line, print_table
from djinn_lab.config import default_profile, load_profile
from djinn_lab.config.fields import MEMORY_BYTES_MIN
from djinn_lab.errors import OptionError, PoolNotFound, UserError
from djinn_lab.protocol.certificates import fingerprint
from djinn_lab.protocol.systems import check_pool_runs_here
from djinn_lab.protocol.user_limits import CONNECTIONS_MAX, SESSIONS_MAX
from djinn_lab.units import format_bytes, format_error, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from djinn_lab.jobs.cost_drift import FamilyDrift
    from djinn_lab.protocol.rest.status import DeviceView, HostView, PlanCacheUsage

FILES = ("queue_policy", "tls_certificate", "tls_key")
"""Options of `pool start` that may name a file."""


def build_group() -> typer.Typer:
    group = typer.Typer(help="Start, stop and look at the pool.", no_args_is_help=True)
    group.command("start")(start)
    group.command("stop")(stop)
    group.command("status")(status)
    group.command("costs")(costs)
    group.command("calibrate")(calibrate)
    return group


def start(
    context: typer.Context,
    devices: Annotated[str | None, typer.Option(help="auto, cuda, or cpu:N. Default: the profile's.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory limit of each device, e.g. 2GiB.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each device's worker.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Where workers run: local (the default), or ray: on the nodes of a Ray cluster."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster: auto, or HOST:PORT. Default: one that is started here."),
    ] = None,
    nodes_max: Annotated[
        int | None,
        typer.Option(min=1, help="Ask that cluster for nodes, up to so many in all. Default: for none."),
    ] = None,
    nodes_idle_for: Annotated[
        str | None,
        typer.Option(help="How long a requested node is idle until it is given back. Default: 5min."),
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="Host memory for parked sessions, per device; 0 for none.")
    ] = None,
    disk: Annotated[str | None, typer.Option(help="Disk space for parked sessions, per device.")] = None,
    link_rate: Annotated[
        str | None, typer.Option(help="Bytes per second for parking on CPU devices, e.g. 1GiB; 0: no limit.")
    ] = None,
    memory_policy: Annotated[
        str | None,
        typer.Option(help="Policy of session memory: what is kept and what is parked; see the docs."),
    ] = None,
    queue_policy: Annotated[
        str | None, typer.Option(help="Policy of the queue: order of jobs, preemption; see the docs.")
    ] = None,
    cost_estimator: Annotated[
        str | None,
        typer.Option(help="Cost estimator of an installed package, or built-in. Default: the profile's."),
    ] = None,
    region_compiler: Annotated[
        str | None,
        typer.Option(
            help="What compiles cells with a tolerance: inductor (the default), cuda-graphs, or one of an "
            "installed package."
        ),
    ] = None,
    notebook_slots: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Batch notebooks that run at once. Default: 2.")
    ] = None,
    notebooks_for: Annotated[
        str | None,
        typer.Option(
            help="Users that may submit notebooks: owner (the default) or users (all); see the docs."
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="sqlite:///PATH or postgresql://... Default: DJINN_DATABASE, else a file."),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another pool leads on that database.")
    ] = False,
    isolation: Annotated[
        str | None,
        typer.Option(
            help="Sessions that may share a process: of one user (default), account, session; none: all."
        ),
    ] = None,
    accept_weak_isolation: Annotated[
        bool,
        typer.Option(
            "--accept-weak-isolation", help="Let several users in where the workers' sandbox does not hold."
        ),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 0,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, 0.0.0.0 for all. Default: 127.0.0.1.")
    ] = None,
    tls: Tls = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    insecure_without_tls: Annotated[
        bool,
        typer.Option("--insecure-without-tls", help="Let others' tokens and tensors travel readable."),
    ] = False,
    sessions_per_user: Annotated[
        int | None,
        typer.Option(min=1, help=f"Sessions that a user may have at once. Default: {SESSIONS_MAX:,}."),
    ] = None,
    connections_per_user: Annotated[
        int | None,
        typer.Option(min=1, help=f"Connections of a user at once. Default: {CONNECTIONS_MAX:,}."),
    ] = None,
    upload_bytes_per_user: Annotated[
        str | None,
        typer.Option(
            help="Uploads of a user, e.g. 8GiB. Default: half of the pool's, once it has two users."
        ),
    ] = None,
    requests_per_s: Annotated[
        int | None, typer.Option(min=1, help="Requests and messages of a user in a second. Default: 2000.")
    ] = None,
    detached_for: Annotated[
        str | None,
        typer.Option(help="How long a session waits for its vanished client, e.g. 8h. Default: 1d."),
    ] = None,
    oidc_issuer: Annotated[
        str | None, typer.Option(help="Admit users of this OpenID Connect issuer, an https address.")
    ] = None,
    oidc_client_id: Annotated[
        str | None, typer.Option(help="The pool's client there, which allows the device flow.")
    ] = None,
    oidc_audience: Annotated[
        str | None, typer.Option(help="What tokens must be made for. Default: the client.")
    ] = None,
    oidc_role_claim: Annotated[
        str, typer.Option(help="The claim with a user's groups; dots lead into it.")
    ] = "groups",
    oidc_roles: Annotated[str, typer.Option(help="Groups by role: admin=chiefs,user=staff.")] = "",
    oidc_default_role: Annotated[
        str, typer.Option(help="Role of users in none of these. Default: they are refused.")
    ] = "",
    jupyterhub_api: Annotated[
        str | None, typer.Option(help="Admit users of this JupyterHub, e.g. http://127.0.0.1:8081/hub/api.")
    ] = None,
    jupyterhub_roles: Annotated[str, typer.Option(help="The Hub's groups by role, as --oidc-roles.")] = "",
    jupyterhub_default_role: Annotated[
        str, typer.Option(help="Role of users in none of these. Default: they are refused.")
    ] = "",
    jupyterhub_admin_role: Annotated[str, typer.Option(help="Role of the Hub's admins.")] = "",
    jupyterhub_scope: Annotated[
        str, typer.Option(help="A scope that the Hub's tokens must have, such as access:services.")
    ] = "",
    identity_provider: Annotated[
        list[str] | None, typer.Option(help="Another identity provider, of an installed package.")
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart/--no-restart", help="Start the server again when it crashes. Default: yes."),
    ] = True,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="The profile whose pool settings are used.")
    ] = None,
    unasked: Annotated[
        bool, typer.Option("--unasked", hidden=True, help="A notebook starts it, not a user.")
    ] = False,
    wait_s: Annotated[
        float | None,
        typer.Option(
            "--wait", min=1, help="Seconds to wait until the pool is ready. Default: 120, with Ray 180."
        ),
    ] = None,
) -> None:
    """Start a pool in the background, or find the one that runs. It serves all of this user's notebooks.
    Without options, one that crashed is started again as it was."""
    check_pool_runs_here()
    from djinn_lab.pool.identity.settings import IdentitySettings, read_settings
    from djinn_lab.pool.launch import start_again, start_pool
    from djinn_lab.pool.start_settings import describe_running, without_effect
    from djinn_lab.protocol.runtime_file import read_crashed, read_runtime

    settings = msgspec.structs.asdict((load_profile(profile) if profile else default_profile()).pool)
    typed = {
        "devices": devices,
        "memory_bytes": None if memory is None else _memory("--memory", memory),
        "threads": threads,
        "engine": engine,
        "address": address,
        "nodes_max": nodes_max,
        "nodes_idle_s": None if nodes_idle_for is None else _seconds("--nodes-idle-for", nodes_idle_for),
        "host_bytes": None if host_memory is None else _bytes("--host-memory", host_memory),
        "disk_bytes": None if disk is None else _bytes("--disk", disk),
        "link_bytes_per_s": None if link_rate is None else _bytes("--link-rate", link_rate),
        "memory_policy": memory_policy,
        "queue_policy": queue_policy,
        "cost_estimator": cost_estimator,
        "region_compiler": region_compiler,
        "notebook_slots": notebook_slots,
        "notebooks_for": notebooks_for,
        "database": database,
        "standby": standby or None,
        "isolation": isolation,
        "accept_weak_isolation": accept_weak_isolation or None,
        "port": port or None,
        "host": host,
        "tls": tls,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "insecure_without_tls": insecure_without_tls or None,
        "sessions_per_user": sessions_per_user,
        "connections_per_user": connections_per_user,
        "upload_bytes_per_user": None
        if upload_bytes_per_user is None
        else _bytes("--upload-bytes-per-user", upload_bytes_per_user),
        "requests_per_s": requests_per_s,
        "detached_s": None if detached_for is None else _seconds("--detached-for", detached_for),
    }
    identity = read_settings(
        oidc_issuer=oidc_issuer,
        oidc_client_id=oidc_client_id,
        oidc_audience=oidc_audience,
        oidc_role_claim=oidc_role_claim,
        oidc_roles=oidc_roles,
        oidc_default_role=oidc_default_role,
        jupyterhub_api=jupyterhub_api,
        jupyterhub_roles=jupyterhub_roles,
        jupyterhub_default_role=jupyterhub_default_role,
        jupyterhub_admin_role=jupyterhub_admin_role,
        jupyterhub_scope=jupyterhub_scope,
        identity_providers=identity_provider or (),
    )
    if identity != IdentitySettings():
        typed["identity"] = identity.encoded()
    given = {name: value for name, value in typed.items() if value is not None}
    before, crashed = read_runtime(), read_crashed()
    again = None if given or profile or not restart else start_again(wait_s)
    info = again or start_pool(
        **{**settings, **given},
        wait_s=wait_s,
        restart=restart,
        remembered=None if unasked else typed_options(context),
    )
    found = before is not None and before.pid == info.pid
    doing = "stands by" if info.standing_by else "already runs" if found else "is ready"
    if again is not None and crashed is not None:
        doing = "is ready again, as it was before it crashed,"
    line = f"The pool {doing} at {info.url} (process {info.pid}): {describe_running(info)}."
    missed = without_effect(info, {**settings, **given} if profile else given)
    if missed:
        raise OptionError(
            f"{line} These options have no effect on it: {', '.join(missed)}.",
            "To apply them, stop it first (its running cells are cancelled): djinn-lab pool stop",
        )
    print_line(line)
    if info.certificate:
        print_line(f"Its certificate: {fingerprint(info.certificate)}")


def typed_options(context: typer.Context) -> list[str]:
    """Return the options of `pool start` that describe the pool, as they can be typed again anywhere: files
    by absolute paths, the database without its password, also where the environment named it."""
    from djinn_lab.pool.database.address import DATABASE_VARIABLE, checked_url, shown

    found: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        source, value = context.get_parameter_source(name), context.params.get(name)
        if name in ("wait_s", "database") or source is None or source.name != "COMMANDLINE":
            continue
        if isinstance(value, bool):
            found.append((option.opts if value else option.secondary_opts)[0])
            continue
        for one in map(str, value if isinstance(value, list | tuple) else (value,)):
            is_file = name in FILES and Path(one).is_file()
            found += [option.opts[0], str(Path(one).absolute()) if is_file else one]
    given = context.params["database"]
    if url := given or (found and os.environ.get(DATABASE_VARIABLE)):
        found += ["--database", shown(checked_url(url))]
    return found


def stop(
    wait_s: Annotated[
        float, typer.Option("--wait", min=1, help="Seconds to wait until the pool has ended.")
    ] = 10,
) -> None:
    """Stop this machine's pool. Running cells are cancelled; everything on the devices is freed."""
    from djinn_lab.client.requests import POOL_VARIABLE
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.pool.launch import stop_pool
    from djinn_lab.protocol.configured_start import forget_start
    from djinn_lab.protocol.runtime_file import read_crashed, read_runtime, supervisor_process

    info, named = read_runtime(), os.environ.get(POOL_VARIABLE)
    if named and info is not None and info.url not in (one.strip().rstrip("/") for one in named.split(",")):
        raise UserError(
            f"{POOL_VARIABLE} names {named}, and this command stops this machine's pool, at {info.url}.",
            f"Unset {POOL_VARIABLE} to stop this machine's pool, or stop the other one on its machine.",
        )
    if named and info is not None and (asking := PoolClient.find().status()).role != "admin":
        raise UserError(
            f"{POOL_VARIABLE} and DJINN_TOKEN make you {asking.user} ({asking.role}) of this pool, and only "
            "an admin stops it.",
            "Unset them to stop it as the user who runs it.",
        )
    crashed = supervisor_process() is None and read_crashed() is not None
    forgotten = forget_start()
    if stop_pool(wait_s=wait_s):
        print_line("The pool had crashed; its settings are given up." if crashed else "The pool has stopped.")
    elif forgotten:
        print_line("No pool was running; the settings of the last one are given up.")
    else:
        raise PoolNotFound("No pool is running on this machine.")


def status(as_json: AsJson = False) -> None:
    """Show the pool, its devices and how busy they are."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.protocol.rest.jobs import FINISHED_STATES

    client = PoolClient.find()
    client.check_writes()
    answer = client.status()
    if as_json:
        print_json(answer)
        return
    print_line(
        f"Pool {answer.pool} at {client.url}, version {answer.version}, up "
        f"{format_seconds(answer.uptime_s)}; you are {answer.user} ({answer.role})."
    )
    under_way = {state: count for state, count in answer.jobs.items() if state not in FINISHED_STATES}
    cells = ", ".join(f"{count} {state.lower()}" for state, count in under_way.items() if count)
    if client.fingerprint:
        print_line(f"Certificate: {client.fingerprint}")
    print_line(f"Sessions: {answer.sessions}. Cells under way: {cells or 'none'}.")
    if answer.hosts:
        about_hosts = ("host", "state", "devices", "received", "sent", "link", "second copies")
        print_table("Hosts", about_hosts, [_host_row(host) for host in answer.hosts])
    if answer.node_requests:
        print_line(answer.node_requests)
    if answer.cluster_dashboard:
        print_line(f"Dashboard of the cluster: {answer.cluster_dashboard}")
    headings = ("device", "state", "memory used", "threads", "queue", "job", "speed", "labels")
    print_table("Devices", headings, [_device_row(device) for device in answer.devices])
    for warning in answer.warnings:
        print_line(f"Warning: {warning}")


def costs(as_json: AsJson = False) -> None:
    """Show what run times are predicted from, and how far predictions were off."""
    from djinn_lab.client.cost_sentences import (
        device_sentence,
        estimator_sentences,
        spread_sentence,
        unpriced_sentence,
    )
    from djinn_lab.client.rest import PoolClient

    answer = PoolClient.find().costs()
    if as_json:
        print_json(answer)
        return
    print_line(spread_sentence(answer))
    if answer.estimator is not None:
        for line in estimator_sentences(answer.estimator):
            print_line(line)
    print_line(_plan_cache(answer.plan_cache))
    for device in answer.devices:
        print_line(device_sentence(device))
        if device.families:
            headings = ("family", "runs", "measured / predicted", "middle half", "factor", "off by", "p90")
            print_table(device.device, headings, [_family_row(one) for one in device.families])
    if answer.unpriced:
        print_line(unpriced_sentence(answer))


def _plan_cache(usage: PlanCacheUsage) -> str:
    graphs = usage.hits + usage.misses
    if not graphs:
        return "Graphs: none yet."
    calls = usage.calls_priced + usage.calls_known
    priced = f" Of the calls in the others {usage.calls_known / calls:.0%} were known." if calls else ""
    return (
        f"Graphs: {graphs}, of which {usage.hits / graphs:.0%} were known, and {usage.resized / graphs:.0%} "
        f"but for their sizes.{priced}"
    )


def _family_row(one: FamilyDrift) -> tuple[str, ...]:
    return (
        one.family,
        str(one.runs),
        f"{one.ratio:.2f}",
        f"{one.low:.2f} to {one.high:.2f}",
        f"{one.factor:.2f}",
        format_error(one.error),
        format_error(one.error_p90),
    )


def calibrate(
    device: Annotated[str | None, typer.Argument(help="Which device; default: all of the pool.")] = None,
) -> None:
    """Measure devices again, as soon as they are idle (operators)."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    names = [one.device for one in client.costs().devices] if device is None else [device]
    for name in names:
        client.calibrate(name)
    print_line(f"To be measured when idle: {', '.join(names)}. See: djinn-lab pool costs")


def _host_row(host: HostView) -> tuple[str, ...]:
    rate = host.link_bytes_per_s
    return (
        host.host,
        host.state + (f", lost {host.losses} x before" if host.losses else ""),
        ", ".join(host.devices),
        format_bytes(host.received_bytes),
        format_bytes(host.sent_bytes),
        "not measured" if rate is None else f"{format_bytes(int(rate))}/s",
        format_bytes(host.second_copies_bytes),
    )


def _device_row(device: DeviceView) -> tuple[str, ...]:
    used = f"{format_bytes(device.used_bytes)} of {format_bytes(device.memory_bytes)}{device.reserved}"
    rate = device.flops_per_s
    return (
        device.device,
        device.state + (", cordoned" if device.cordoned else ""),
        used,
        str(device.threads),
        str(device.queue_length),
        (device.job or "")[:12],
        "not measured" if rate is None else f"{rate / 1e9:.0f} GFLOP/s",
        ", ".join((*device.labels, *(f"taint {taint}" for taint in device.taints))),
    )


def _memory(option: str, text: str) -> int:
    """Return a device's memory. Raises OptionError also for less than a profile may have, which is most often
    a number without its unit."""
    count = _bytes(option, text)
    if count < MEMORY_BYTES_MIN:
        raise OptionError(
            f"{option} {text}: {format_bytes(count)} is too little for a device; the minimum is "
            f"{format_bytes(MEMORY_BYTES_MIN)}.",
            f"Give more, as a size with its unit, such as {option} 10GB.",
        )
    return count


def _seconds(option: str, text: str) -> int:
    try:
        return round(parse_seconds(text))
    except ValueError as error:
        raise OptionError(f"{option}: {error}.") from None


def _bytes(option: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise OptionError(f"{option}: {error}.") from None
