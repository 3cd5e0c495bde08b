"""Finds what the agents of a dead pool had parked, for sessions that the next pool continues.

The files stay where they are. Each node's new agent reads them like second copies, and removes them when no
manifest names them any more."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import ray

from djinn_lab.pool.blobs.directory import PARKED, Belonging, left_directories, shared_memory
from djinn_lab.pool.devices.launcher import TakenCopy
from djinn_lab.pool.launchers.adoption import LeftCopy
from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster
from djinn_lab.pool.launchers.ray_cluster.moves import NamedPiece, named_pieces
from djinn_lab.protocol.runtime_file import data_directory, runtime_directory
from djinn_lab.system.host import host_id

FOUND_WITHIN_S = 60.0

log = logging.getLogger(__name__)


class Heritage(msgspec.Struct, frozen=True):
    """What dead agents left on a node's machine (``host``). ``files``: in ``directories``, those that were
    asked for, and whether they are on the disk."""

    host: str
    directories: tuple[str, ...]
    files: Mapping[str, bool]


class TakenSessions(NamedTuple):
    """``copies``: by session. ``directories``: that a node's agent reads. ``pieces``: of these sessions, by
    node."""

    copies: Mapping[str, TakenCopy]
    directories: Mapping[str, tuple[str, ...]]
    pieces: Mapping[str, tuple[NamedPiece, ...]]


def agent_bases() -> tuple[Path, Path]:
    """Return where the agents of this host have their directories: in shared memory, and on the disk."""
    return shared_memory(runtime_directory()), data_directory() / PARKED


def agents_belonging(pool: Belonging) -> Belonging:
    """Return what the directories of a pool's agents belong to, on the host that asks."""
    return Belonging(f"agents of {pool.database}", "", host_id(), pool.kept_s)


def take_left_sessions(
    cluster: Cluster, belonging: Belonging, copies: Mapping[str, LeftCopy]
) -> TakenSessions:
    """Take over the copies of which every piece is on some node."""
    named: dict[str, tuple[NamedPiece, ...]] = {}
    for session, copy in copies.items():
        try:
            named[session] = named_pieces(copy.manifest)
        except (msgspec.DecodeError, KeyError) as error:
            log.error("the manifest of a parked session cannot be read: %s", error)
    if not named:
        return TakenSessions({}, {}, {})
    paths = sorted({piece.place.path for pieces in named.values() for piece in pieces})
    found = _ask_nodes(cluster, belonging, paths)
    node_of = {path: node for node, heritage in found.items() for path in heritage.files}
    taken: dict[str, TakenCopy] = {}
    by_node: dict[str, list[NamedPiece]] = {node: [] for node in found}
    for session, pieces in named.items():
        if all(piece.place.path in node_of for piece in pieces):
            for piece in pieces:
                by_node[node_of[piece.place.path]].append(piece)
            taken[session] = TakenCopy(copies[session].manifest, _disk_bytes(pieces, found.values()))
    return TakenSessions(
        taken,
        {node: heritage.directories for node, heritage in found.items()},
        {node: tuple(pieces) for node, pieces in by_node.items()},
    )


def _disk_bytes(pieces: Iterable[NamedPiece], found: Iterable[Heritage]) -> int:
    on_disk = {path for heritage in found for path, disk in heritage.files.items() if disk}
    return sum(piece.place.nbytes for piece in pieces if piece.place.path in on_disk)


def _ask_nodes(cluster: Cluster, belonging: Belonging, paths: Sequence[str]) -> dict[str, Heritage]:
    """Return what each node has. Of nodes on one machine, the first has it all."""
    asked = {node: cluster.on_node(_heritage, node).remote(belonging, paths) for node in cluster.used}
    answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=FOUND_WITHIN_S)
    found: dict[str, Heritage] = {}
    seen: set[str] = set()
    for node, answer in asked.items():
        name = cluster.name_of(node)
        if answer not in answered:
            log.warning("host %s does not say within %.0f s what is parked there", name, FOUND_WITHIN_S)
            continue
        try:
            heritage: Heritage = ray.get(answer)
        except ray.exceptions.RayError as error:
            log.warning("host %s does not say what is parked there: %s", name, error)
            continue
        if heritage.host not in seen:
            seen.add(heritage.host)
            found[node] = heritage
    return found


def _heritage(pool: Belonging, paths: Sequence[str]) -> Heritage:
    """Run on a node."""
    belonging = agents_belonging(pool)
    memory, disk = (left_directories(base, belonging) for base in agent_bases())
    files = {}
    for path in map(Path, paths):
        if any(path.is_relative_to(one) for one in (*memory, *disk)) and path.is_file():
            files[str(path)] = any(path.is_relative_to(one) for one in disk)
    return Heritage(host_id(), tuple(str(one) for one in (*memory, *disk)), files)
