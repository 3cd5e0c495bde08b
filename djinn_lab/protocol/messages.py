"""What a client and a pool say to each other on a session's WebSocket (binary MessagePack frames).

The client speaks first: :class:`Hello`. The pool answers :class:`Welcome` or :class:`RequestRefused`,
before any payload is read. From then on every :class:`SubmitSegment` is answered by exactly one
:class:`SegmentResult`, in the order of the segments, with :class:`JobUpdate` messages in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from djinn_lab.jobs import Terms
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.program import TensorMeta
from djinn_lab.units import counted, format_bytes

PROTOCOL_VERSION = 11
"""2 added :attr:`SubmitSegment.delta` and :attr:`SubmitSegment.code_number`, 3 :class:`PhaseAnswered`, 4
:attr:`SubmitSegment.terms`, 5 more of them (:mod:`djinn_lab.protocol.compatibility` says which), 6 another
form of :attr:`SubmitSegment.delta`, 7 :attr:`QueryBlobs.sketches` and uploads without a digest, 8
:attr:`SubmitSegment.follows`, 9 :attr:`Hello.process` and :attr:`SubmitSegment.again`, 10 terms of a
profile, 11 several tensors in one request (:mod:`djinn_lab.protocol.rest.transfers`)."""
POOL_VERSIONS = (1, 6, 7, 8, 9, 10, 11)
"""What a pool understands. A client of 2 to 5 sends deltas that no pool reads any more; it falls back to
1."""
CLIENT_VERSIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
"""What a client tries, newest first. Below 6 it sends every program whole."""
MESSAGE_BYTES_MAX = 256 * 2**20
"""A WebSocket frame above this closes the connection with a reason; tensors travel as blobs instead."""
TOLERANCE_MAX = 0.1
"""Of a cell: so much its results may differ at most."""
RESUME_S = 75.0
"""After a connection broke, or the pool was killed and started again, a client on the pool's host tries for
so long to open another one to its session."""
AWAY_S = 7200.0
"""A client of another host tries for so long, and a pool keeps the cells of its clients for so long: a laptop
may sleep, or change its network. Of a client on its own host the pool knows when it has ended."""
UNKNOWN_TOKEN = "The token is missing or wrong."
CLOSE_SESSION = 4410
"""The WebSocket's close code where the session was closed, and not by its client."""
CLOSE_POOL = 4411
"""The WebSocket's close code where the pool was stopped, and ended all sessions."""
SKIPPED = "skipped"
FOLLOWERS_MAX = 4
"""Segments of a session that a pool holds until those before them have run."""
CODES_MAX = 256
"""Cell sources that a connection remembers."""
NAME_CHARS_MAX = 200
"""Of the names of sessions and cells; the rest is left out."""
CODE_CHARS_MAX = 2**18
"""Of a cell's source, as the pool keeps and shows it."""
INLINE_BYTES_MAX = 64 * 2**10
"""Fetched tensors up to this size ride in the result message."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """``session``: an id to re-attach to, else None. ``host``:
    :func:`djinn_lab.protocol.runtime_file.host_id`. ``latest_only``: no :class:`JobUpdate` is wanted that
    would come right before another one, or a result, of its job."""

    protocol_version: int
    client_version: str
    torch_version: str
    host: str
    name: str
    session: str | None = None
    latest_only: bool = False
    process: int | None = None
    """The client's. If it is on the pool's host and has ended, it will not come back."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """``curves``: None until measured. ``below_bytes``: of the tiers below it; ``link_bytes_per_s``: to
    these, None for unknown. ``watts``: that it draws when busy, None for unknown."""

    device: str
    kind: str
    name: str
    memory_bytes: int
    threads: int
    torch_version: str
    curves: DeviceCurves | None = None
    below_bytes: int = 0
    link_bytes_per_s: float | None = None
    watts: float | None = None

    def __str__(self) -> str:
        threads = "" if self.kind != "cpu" else f" with {counted(self.threads, 'thread')}"
        measured = "measured" if self.curves is not None else "not measured yet"
        return (
            f"{self.device}: {self.name}{threads}, {format_bytes(self.memory_bytes)}, "
            f"torch {self.torch_version}, {measured}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show it in a notebook as a sentence, not as its fields with all curves."""
        printer.text(str(self))


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """``blob_directory``: where tensor files go when client and pool share a host, else None."""

    protocol_version: int
    server_version: str
    session: str
    user: str
    pool: str
    resumed: bool
    blob_directory: str | None
    devices: list[DeviceInfo]

    @property
    def torch_versions(self) -> tuple[str, ...]:
        """The versions of torch that the devices compute with, of those that have started."""
        return tuple(sorted({device.torch_version for device in self.devices if device.torch_version}))


class RequestRefused(msgspec.Struct, frozen=True, tag="refused"):
    """``kind``: ``version``, ``token``, ``session``, ``limit`` or ``message``."""

    kind: str
    message: str


class QueryBlobs(msgspec.Struct, frozen=True, tag="query_blobs"):
    """Which of these digests must be uploaded? The others are pinned until the next submit is done.

    ``sketches``: :func:`djinn_lab.srg.blob_names.sketch_of` tensors; of which has this user uploaded none?
    """

    digests: list[str]
    sketches: list[str] = []


class BlobsMissing(msgspec.Struct, frozen=True, tag="blobs_missing"):
    digests: list[str]
    sketches: list[str] = []


class BlobStored(msgspec.Struct, frozen=True, tag="blob_stored"):
    """The client wrote the file ``<blob_directory>/<digest>`` (same host only). Other hosts send
    ``PUT /v1/blobs/<digest>`` instead, which has the same effect. ``digest`` may be a drawn name
    (:mod:`djinn_lab.srg.blob_names`), by which this session's programs refer to the bytes then."""

    digest: str
    nbytes: int


FETCH_CELL = "between cells"
"""The cell of a job that fetches values between cells."""


class SubmitSegment(msgspec.Struct, frozen=True, tag="submit", omit_defaults=True):
    """One segment of a cell job. ``job`` is chosen by the client (a UUID hex); the first segment creates it.

    ``final``: the cell is over after this segment. ``cut``: why the segment was sent (``"cell end"``,
    ``"item"``, ``"print"`` ...), with the cell line.
    """

    job: str
    segment: int
    cell: str
    priority: str
    final: bool
    cut: str
    cut_line: int
    program: bytes
    code: str = ""
    """The cell's source, shown on the dashboard (first segment only)."""
    delta: bool = False
    """Whether ``program`` is encoded by a :class:`djinn_lab.srg.wire.ProgramSender`."""
    code_number: int | None = None
    """With ``code``: remember it under this number, 0 to :data:`CODES_MAX` less one. Without: it is the code
    of that number."""
    terms: Terms | None = None
    """What else was asked of the queue (first segment only)."""
    resends: bool = False
    """Where sources are missing, the client sends the segment again with their bytes, or finishes the job:
    ``final`` does not end it then."""
    follows: bool = False
    """The segment before it, of the same job, may still be unanswered. This one runs once that one is done;
    if that one ends otherwise, this one is answered :data:`SKIPPED` and the next one has its number."""
    again: bool = False
    """It was sent before, over a connection that broke. Where it came, it is not run twice: its answer is
    sent when there is one, or again."""
    tolerance: float = 0.0
    """Results may differ by so much from those of the program's ops, so that parts of it may be compiled; 0:
    not by one bit. A pool that does not know it computes them exactly."""


class FinishJob(msgspec.Struct, frozen=True, tag="finish"):
    """The cell is over with nothing more to send. ``outcome``: ``done``, ``failed`` or ``cancelled``."""

    job: str
    outcome: str
    message: str = ""


class CancelJob(msgspec.Struct, frozen=True, tag="cancel"):
    job: str


class SignalPhase(msgspec.Struct, frozen=True, tag="signal"):
    """A hint, answered by :class:`PhaseAnswered` from protocol 3 on. ``phase``: ``COMPUTE``, ``IO_WAIT`` or
    ``SOON``; ``expected_s``: until the session will want to compute."""

    phase: str
    expected_s: float | None = None


class ReleaseValues(msgspec.Struct, frozen=True, tag="release"):
    values: list[int]


class CloseSession(msgspec.Struct, frozen=True, tag="close"):
    """The user is done: free everything. (A lost connection only parks the session.)"""


class JobUpdate(msgspec.Struct, frozen=True, tag="job"):
    """``position`` counts from 1 in the device's queue. ``reason`` is one sentence, for people.
    ``estimate_s``: until the start; ``estimate_error_s``: by how much such estimates were off lately, in the
    median. ``ops_done``, ``ops_total``: of all segments that the cell has sent so far. ``left_s``: that
    they are predicted to run yet, None where unknown."""

    job: str
    state: str
    reason: str = ""
    position: int | None = None
    estimate_s: float | None = None
    device: str | None = None
    ops_done: int = 0
    ops_total: int = 0
    estimate_error_s: float | None = None
    left_s: float | None = None


class ErrorInfo(msgspec.Struct, frozen=True):
    """``family``: ``user``, ``memory``, ``refused``, ``missing_blobs``, ``cancelled`` or ``pool``.
    ``node`` indexes the program's nodes. ``advice`` says what to do. ``missing``: sources that the session
    no longer holds; then nothing of the segment was loaded or run, and it may be sent again with their bytes.
    """

    family: str
    type_name: str
    message: str
    advice: str = ""
    node: int | None = None
    op: str | None = None
    frames: list[str] = []
    missing: list[int] = []


class Fetched(msgspec.Struct, frozen=True):
    """Row-major contiguous bytes: inline ``data``, or ``blob``, the name of a file in the blob directory that
    the client deletes after reading (other hosts: :mod:`djinn_lab.protocol.rest.transfers`)."""

    value: int
    meta: TensorMeta
    data: bytes | None = None
    blob: str | None = None


class PhaseAnswered(msgspec.Struct, frozen=True, tag="phase"):
    """``answer``: ``accepted``, ``clipped``, ``deferred``, ``superseded`` or ``rejected``; ``message`` says
    why."""

    answer: str
    message: str


class SegmentResult(msgspec.Struct, frozen=True, tag="result"):
    """``outcome``: ``done``, ``failed``, ``cancelled`` or ``skipped``; the first ``executed`` nodes ran.

    ``stages``: seconds by stage as the pool measured them, a subset of ``queued``, ``restoring``,
    ``recovering``, ``preempted``, ``dispatch``, ``load``, ``run``, ``fetch``; they do not overlap.
    ``pool_s``: from receipt of the submit to sending this.
    """

    job: str
    segment: int
    outcome: str
    executed: int
    device: str | None
    stages: dict[str, float]
    pool_s: float
    fetched: list[Fetched] = []
    dynamic_metas: list[TensorMeta | None] = []
    rng_state: bytes | None = None
    error: ErrorInfo | None = None
    peak_bytes: int = 0
    plan_cached: bool = False
    """Whether the pool had checked and measured an equal program before."""
    gang: str = ""
    """What became of the wish for several devices, where there was one."""
    recovery: str = ""
    """What was made again after a worker was lost, in one line."""
    out_bytes: int = 0
    in_bytes: int = 0
    ahead_bytes: int = 0
    """Values that went to the host for lack of memory on the device, and came back; of these, while ops ran
    before the one that reads them."""
    compiled: str = ""
    """What became of compiled regions, of a segment with a tolerance, in one line."""
    batched_with: int = 0
    """With so many other sessions it ran as one batch."""


ToPool = (
    Hello
    | QueryBlobs
    | BlobStored
    | SubmitSegment
    | FinishJob
    | CancelJob
    | SignalPhase
    | ReleaseValues
    | CloseSession
)
FromPool = Welcome | RequestRefused | BlobsMissing | JobUpdate | PhaseAnswered | SegmentResult

encode = msgspec.msgpack.Encoder().encode
decode_to_pool: Callable[[bytes], ToPool] = msgspec.msgpack.Decoder(ToPool).decode
decode_from_pool: Callable[[bytes], FromPool] = msgspec.msgpack.Decoder(FromPool).decode
