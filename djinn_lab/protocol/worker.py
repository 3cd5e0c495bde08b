"""What a pool and a worker process say to each other over their socket pair.

Frames are a 4-byte big-endian length and a MessagePack body. The worker answers every
:class:`RunSegment` with exactly one :class:`SegmentDone`, :class:`SegmentFailed`,
:class:`SegmentCancelled` or :class:`RunPreempted`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec

from djinn_lab.protocol.isolation import SandboxLevel
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.program import TensorMeta

FRAME_BYTES_MAX = 2**31 - 1


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """Where a preempted segment resumes: before op number ``executed``, with the random state that it had
    there (None: it draws no random numbers)."""

    executed: int
    rng_state: bytes | None = None


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """One storage and the values that look at it, on their way from one session to another. ``blob``: the
    name of a result with all its bytes, None where there are none. ``layouts``: encoded, of every value;
    workers know how."""

    blob: str | None
    nbytes: int
    values: tuple[int, ...]
    layouts: bytes


class RunSegment(msgspec.Struct, frozen=True, tag="run"):
    """``program``: encoded :class:`~djinn_lab.srg.program.Program`. ``blobs``: what the program calls a blob
    to its name in the pool's store, which is one for equal bytes. ``key``:
    equal for programs that differ in numbers of values and in scalars only. ``resume``: of a segment that
    was preempted; its session's values are here again, with all that it had made by then.
    ``imports``: taken over before anything else, into the memory of those of their values that are here;
    ``exports``: values to hand to others at the end (:attr:`SegmentDone.exported`). ``announces_start``:
    whether a :class:`SegmentStarted` is wanted. ``serial``: counts a session's runs, upwards
    (:attr:`CopyDone.serial`). ``watched``: progress is reported before each op, since one of them may end
    the worker. ``tolerance``: results may differ by so much from those of the program's own ops
    (:mod:`djinn_lab.worker.compiled`); 0: not by one bit. ``interleaved``: run it between two ops of the
    segment that runs, or else in its turn. ``structure``: equal for programs that differ in their sizes, too;
    empty where the pool knows none."""

    job: str
    segment: int
    session: str
    program: bytes
    blobs: dict[str, str] = {}
    key: bytes | None = None
    resume: Resume | None = None
    imports: tuple[Handed, ...] = ()
    exports: tuple[int, ...] = ()
    announces_start: bool = True
    serial: int = 0
    watched: bool = False
    tolerance: float = 0.0
    interleaved: bool = False
    structure: bytes = b""


class RunBatch(msgspec.Struct, frozen=True, tag="run_batch"):
    """Run segments of several sessions in lockstep, so that an op that multiplies by a weight of all of them
    reads it once (:mod:`djinn_lab.worker.batched`). Each is answered as if it had come alone. ``structure``:
    equal for programs that differ in their sizes only."""

    structure: bytes
    segments: tuple[RunSegment, ...]

    @property
    def session(self) -> str:
        """Return the first segment's session."""
        return self.segments[0].session


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Drop values of a session, wherever it is, once all runs before have ended. It takes no memory, so it
    waits for no lease. ``serial``: as in :class:`RunSegment`. Answered by :class:`Released`."""

    session: str
    values: tuple[int, ...]
    serial: int = 0


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    job: str


class Preempt(msgspec.Struct, frozen=True, tag="preempt"):
    """Stop between two ops and keep everything, to resume later; forgotten where the segment ended before
    this was seen."""

    job: str
    segment: int


class Close(msgspec.Struct, frozen=True, tag="close"):
    session: str


class Calibrate(msgspec.Struct, frozen=True, tag="calibrate"):
    """Measure this device, between what else it runs (about ten seconds in all); answered by
    :class:`DeviceMeasured` or :class:`DeviceNotMeasured`. One that is under way begins anew."""


class Lease(msgspec.Struct, frozen=True, tag="lease"):
    """Use at most so many bytes of the device from here on: other processes have the rest. Answered by
    :class:`Leased`, also in mid-run."""

    limit_bytes: int


class ReleaseHost(msgspec.Struct, frozen=True, tag="release_host"):
    """Return so many bytes of host memory, of what no session holds, and with ``copies`` of whole copies
    of sessions too: another worker of the device needs them. Not answered: what is free is seen in the file
    in which they count together."""

    nbytes: int
    copies: bool = False


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answered by :class:`Pong`, also while a program runs."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The worker's process is alive, and reads what it is sent."""


class StoreState(msgspec.Struct, frozen=True, tag="store"):
    """Copy to the host what has no valid copy there; while the session runs, completed pieces only. Every
    transfer is answered by exactly one :class:`CopyDone` or :class:`CopyFailed`, unless its session
    is closed. ``expedited``: it passes the others of its direction."""

    transfer: int
    session: str
    expedited: bool = False


class Evict(msgspec.Struct, frozen=True, tag="evict"):
    """Drop the device's copy; fails unless everything is stored, or ``discard``."""

    transfer: int
    session: str
    discard: bool = False


class Reads(msgspec.Struct, frozen=True, array_like=True):
    """``values``: of its session that a job's segment reads, by first use; its first op reads the first
    ``first`` of them."""

    job: str
    values: tuple[int, ...]
    first: int


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """Restore a session from the host or the disk, and check every piece. ``manifest``: of a session that
    this process did not store itself (:attr:`CopyDone.manifest`). ``released``: values of the manifest
    that the session released; their pieces may be gone, so they are not looked for. ``reads``: the segment
    that waits for it. Its values are copied in that order, before all others, and
    :class:`FirstValuesCopied` says when it may be sent. ``nbytes``: what the session takes on the device,
    as session memory counts."""

    transfer: int
    session: str
    expedited: bool = False
    manifest: bytes | None = None
    released: tuple[int, ...] = ()
    reads: Reads | None = None
    nbytes: int = 0


class Demote(msgspec.Struct, frozen=True, tag="demote"):
    """Move a parked session from the host to the disk."""

    transfer: int
    session: str


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Drop the host's copy of a session that is on the device."""

    transfer: int
    session: str


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Another process has the session now: what is parked of it here is of no use. Answered by
    :class:`Closed`. Unlike a close it never waits behind a running program, so that the session can
    come back at once."""

    session: str


class CopyKept(msgspec.Struct, frozen=True, tag="copy_kept"):
    """The pool's database has the manifest that a transfer made (:attr:`CopyDone.manifest`): what only older
    ones name is needed no more. Not answered."""

    transfer: int
    session: str


class Expedite(msgspec.Struct, frozen=True, tag="expedite"):
    """A queued or running transfer is waited for now; an unknown one is over already. ``reads``: as in
    :class:`Restore`, in place of what was said before."""

    transfer: int
    reads: Reads | None = None


class RegionCompiled(msgspec.Struct, frozen=True, tag="compiled"):
    """The library of a region (:func:`djinn_lab.protocol.compiling.region_key`) lies in the directory of
    compiled regions. ``problem``: why there is none, empty where there is one. ``seconds``: that it took."""

    region: str
    problem: str
    seconds: float


RunOrder = RunSegment | RunBatch | Release | Calibrate
"""What a worker does one after the other."""

CopyOrder = StoreState | Evict | Restore | Demote | Forget | CopyKept | Expedite | Drop | Close
"""What moves or drops a session's values."""

ToWorker = RunOrder | CopyOrder | Cancel | Preempt | Lease | RegionCompiled | ReleaseHost | Ping | Shutdown


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """``kind`` is ``"cpu"``, ``"cuda"``, or torch's name of another accelerator; ``memory_bytes`` the limit
    that is enforced."""

    device: str
    kind: str
    name: str
    memory_bytes: int
    threads: int
    torch_version: str
    host_bytes: int = 0
    disk_bytes: int = 0
    link_bytes_per_s: float | None = None
    """Limits of this device's host and disk tiers, and the rate of its link as configured (CPU) or
    measured."""
    numa_node: int | None = None
    """The device's node; None where the machine does not report it, or it is on several."""
    sandbox: SandboxLevel = "none"
    """What holds in this process."""
    lacking_ops: tuple[str, ...] = ()
    """Ops that a graph may name, and that the worker's torch does not have."""


class Leased(msgspec.Struct, frozen=True, tag="leased"):
    """The limit that is enforced now: as in the :class:`Lease`, or what was in use already."""

    limit_bytes: int


class WornOut(msgspec.Struct, frozen=True, tag="worn_out"):
    """The process holds so much memory that is in no tensor that ops may be refused some; sent after a
    segment, again and again. It should be ended when nothing is lost by that."""

    held_bytes: int
    limit_bytes: int


class HostWanted(msgspec.Struct, frozen=True, tag="host_wanted"):
    """A worker needs host memory that others of its device keep: they are sent :class:`ReleaseHost`."""

    nbytes: int
    copies: bool = False


class DeviceMeasured(msgspec.Struct, frozen=True, tag="measured"):
    """What short runs of ops of every family took."""

    curves: DeviceCurves


class DeviceNotMeasured(msgspec.Struct, frozen=True, tag="not_measured"):
    """:class:`Calibrate` was of no use now; it may be later."""

    reason: str


class CompileRegion(msgspec.Struct, frozen=True, tag="compile"):
    """Please compile this region, an encoded program of :func:`djinn_lab.srg.region_programs.compilable`.
    Answered by :class:`RegionCompiled`, once that is done."""

    region: bytes


class SegmentStarted(msgspec.Struct, frozen=True, tag="started"):
    job: str
    segment: int
    ops_total: int


class SegmentProgress(msgspec.Struct, frozen=True, tag="progress"):
    job: str
    segment: int
    ops_done: int
    ops_total: int


class FetchedTensor(msgspec.Struct, frozen=True, tag="tensor"):
    """Bytes of a fetched value, contiguous in logical (row-major) order: inline, or as the result that
    ``blob`` names. A result belongs to its receiver, which deletes it."""

    value: int
    meta: TensorMeta
    data: bytes | None
    blob: str | None


class WorkerMemory(msgspec.Struct, frozen=True):
    """Live bytes of storages on the device, in all and by session, and the peak of this segment. ``number``:
    counts a worker's reports upwards, since threads may send theirs in another order. ``held_bytes``: what
    the process has from the system for tensors and kernels, in use or not. The rest: as in
    :class:`djinn_lab.memory.MemoryReported`."""

    used_bytes: int
    peak_bytes: int
    session_bytes: dict[str, int]
    shared_bytes: int = 0
    kv_bytes: dict[str, int] = {}
    unstored_bytes: dict[str, int] = {}
    ready_bytes: dict[str, int] = {}
    weight_bytes: dict[str, int] = {}
    offloaded_bytes: dict[str, int] = {}
    host_bytes: int = 0
    disk_bytes: int = 0
    on_disk_bytes: dict[str, int] = {}
    number: int = 0
    held_bytes: int = 0


def pack_times(starts_s: Iterable[float], ends_s: Iterable[float]) -> bytes:
    """Pack nodes' times: of each node in turn its start and its end, as float64."""
    return array("d", (time_s for pair in zip(starts_s, ends_s, strict=True) for time_s in pair)).tobytes()


class NodeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """``node_times``: when every node that a run executed began and ended, packed as by :func:`pack_times`;
    seconds since the run began on the worker."""

    node_times: bytes

    @property
    def node_start_s(self) -> memoryview[float]:
        return memoryview(self.node_times).cast("d")[::2]

    @property
    def node_end_s(self) -> memoryview[float]:
        return memoryview(self.node_times).cast("d")[1::2]


class SegmentDone(NodeTimes, frozen=True, tag="done"):
    """The times of a resumed segment's nodes are those since then. The results of ``exported`` belong to the
    receiver. ``out_bytes`` and ``in_bytes``: values that went to the host for lack of memory, and came
    back; ``ahead_bytes``: of these, while ops ran before the one that reads them. ``compiled``: what became
    of its compiled regions, in one line, of a session that has a tolerance; ``compiled_ops``: ops in regions
    that ran compiled, whose times are shares of their region's. ``batched_with``: the most other
    sessions with which one of its ops ran as one."""

    job: str
    segment: int
    fetched: list[FetchedTensor]
    dynamic_metas: list[TensorMeta | None]
    rng_state: bytes | None
    load_s: float
    run_s: float
    fetch_s: float
    memory: WorkerMemory
    exported: tuple[Handed, ...] = ()
    out_bytes: int = 0
    in_bytes: int = 0
    ahead_bytes: int = 0
    compiled: str = ""
    compiled_ops: int = 0
    batched_with: int = 0


class RemoteFailure(msgspec.Struct, frozen=True):
    """A Python exception on the worker. ``family``: ``user`` (the op itself raised), ``memory`` (the
    device's limit), ``refused`` (op or message not allowed) or ``pool`` (a fault of ours). ``missing``:
    sources that the session should have held; then nothing of the program was loaded or run."""

    family: str
    type_name: str
    message: str
    node: int | None
    op: str | None
    frames: list[str]
    missing: list[int] = []


class SegmentFailed(msgspec.Struct, frozen=True, tag="failed"):
    """``executed`` nodes ran before the failure; values of later nodes do not exist. ``rng_state``: as these
    left it, where the program draws random numbers."""

    job: str
    segment: int
    error: RemoteFailure
    executed: int
    memory: WorkerMemory
    rng_state: bytes | None = None


class SegmentCancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    job: str
    segment: int
    executed: int
    memory: WorkerMemory


class RunPreempted(NodeTimes, frozen=True, tag="preempted"):
    """The segment stopped before op number ``executed``; what it made by then stays among its session's
    values, and can be parked with them. ``rng_state``: for :class:`Resume`. ``if_given_up``: values that are
    of no use if it never resumes. The times are of the ops of this run, as in :class:`SegmentDone`. (Only a
    last op has dynamic metas, so there are none yet.) ``undone``: this run did nothing, because the restore
    of its session failed meanwhile."""

    job: str
    segment: int
    executed: int
    ops_total: int
    rng_state: bytes | None
    if_given_up: list[int]
    load_s: float
    run_s: float
    memory: WorkerMemory
    undone: bool = False
    out_bytes: int = 0
    in_bytes: int = 0
    ahead_bytes: int = 0


class Released(msgspec.Struct, frozen=True, tag="released"):
    session: str
    memory: WorkerMemory


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    session: str
    memory: WorkerMemory


TransferKind = Literal["store", "evict", "restore", "demote", "forget"]
"""As :data:`djinn_lab.memory.TransferKind`."""


class FirstValuesCopied(msgspec.Struct, frozen=True, tag="first_restored"):
    """What the first op of ``job`` reads is on the device; the copy of the rest continues. The segment may be
    sent: its ops wait for what they read. Where the copy then fails, the segment stops between two ops, is
    undone and answered, by :class:`RunPreempted` at the op where it began, after the
    :class:`CopyFailed`."""

    transfer: int
    session: str
    job: str
    memory: WorkerMemory


class CopyDone(msgspec.Struct, frozen=True, tag="transferred"):
    """``copied_bytes`` in ``copy_s`` seconds, after ``queued_s`` in the queue. ``checked_pieces``: hashes
    compared. ``whole``: after a store, whether nothing is unstored now; then ``manifest`` says where
    everything lies, so that another process can restore the session after this one's death (so, too, after
    a demotion). ``serial``: of the last run that the manifest has the results of, 0 for none in this process;
    ``values``: how many the manifest names."""

    transfer: int
    session: str
    kind: TransferKind
    memory: WorkerMemory
    copied_bytes: int = 0
    copy_s: float = 0.0
    queued_s: float = 0.0
    checked_pieces: int = 0
    whole: bool = True
    manifest: bytes | None = None
    serial: int = 0
    values: int = 0


class CopyFailed(msgspec.Struct, frozen=True, tag="not_transferred"):
    """``reason``: for people. ``full``: the tier without enough free capacity. ``mismatch``: stored bytes are
    not what they were; the session's values were dropped."""

    transfer: int
    session: str
    kind: TransferKind
    reason: str
    memory: WorkerMemory
    full: str | None = None
    mismatch: bool = False


RunAnswer = SegmentDone | SegmentFailed | SegmentCancelled | RunPreempted
"""What ends a run of a segment."""

FromWorker = (
    WorkerReady
    | DeviceMeasured
    | DeviceNotMeasured
    | CompileRegion
    | HostWanted
    | WornOut
    | Leased
    | SegmentStarted
    | SegmentProgress
    | SegmentDone
    | SegmentFailed
    | SegmentCancelled
    | RunPreempted
    | Released
    | Closed
    | FirstValuesCopied
    | CopyDone
    | CopyFailed
    | Pong
)

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
