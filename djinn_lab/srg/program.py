"""The graph as data: what capture records, the protocol carries and a worker replays.

A :class:`Program` is one run of torch ops between two moments when values are needed. It is
columnar and interned: shapes, op templates and source positions are stored once and nodes refer
to them by index, so that an iterative cell costs a few bytes per op.

Values and storages
    A *value* is one tensor, named by an integer that is unique within a session and never used
    again. A *storage* is the memory behind it. A view shares its base's storage; an in-place op
    returns its input's storage. In-place ops and views are recorded as they are, and replayed in
    order, so torch's own aliasing semantics hold.

Nothing here is code: an op is a name, an argument is a literal or a hole, and everything is checked by
:func:`djinn_lab.srg.validation.validate_program` before it is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import msgspec

DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element of every dtype that may cross the wire, by torch's name without prefix."""

Phase = Literal["prefill", "decode", "forward", "backward", "optimizer", "other"]
Residency = Literal["weight", "activation", "kv", "input", "output"]
Modality = Literal["text", "vision", "audio", "tabular", "mixed", "unknown"]


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of ``torch.empty(shape)``, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class TensorMeta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Shape, stride (both in elements) and dtype name of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (not of the memory span, which strides can widen or shrink)."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element in memory."""
        if 0 in self.shape:
            return 0
        span = 1 + sum([(size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)])
        return span * DTYPE_BYTES[self.dtype]

    @property
    def blob_bytes(self) -> int:
        """Bytes that travel for a source: see :class:`Source`."""
        return min(self.nbytes, self.span_bytes)


class TensorHole(msgspec.Struct, frozen=True, tag="tensor", tag_field="t"):
    """Takes the node's next input value."""


class ScalarHole(msgspec.Struct, frozen=True, tag="scalar", tag_field="t"):
    """Takes the node's next scalar: a number that cannot change a shape (an eps, a learning rate)."""


class Atom(msgspec.Struct, frozen=True, tag="atom", tag_field="t"):
    """A torch constant by name, e.g. ``Atom("dtype", "float32")`` or ``Atom("device", "cpu")``."""

    kind: Literal["dtype", "device", "layout", "memory_format"]
    name: str


class ComplexNumber(msgspec.Struct, frozen=True, tag="complex", tag_field="t"):
    real: float
    imag: float


Leaf = bool | int | float | str | TensorHole | ScalarHole | Atom | ComplexNumber | None
Argument = Leaf | list[Leaf]
"""No ATen schema nests lists, so the format does not either."""
Scalar = bool | int | float | ComplexNumber


class Template(msgspec.Struct, frozen=True, array_like=True):
    """An op overload (``aten.addmm.default``) with its static arguments; holes take the rest.

    Holes are filled in reading order: ``args`` first, then ``kwargs`` in their own order.
    """

    op: str
    args: list[Argument]
    kwargs: dict[str, Argument]


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """The origin of an op.

    ``module`` is the qualified path below the root module that was called (``""`` outside modules),
    rooted at its class name, e.g. ``GPT2LMHeadModel.transformer.h.0.attn``. ``call`` counts the root
    module calls of the session (0 outside). ``cell`` names the notebook cell, ``line`` the line in it
    (1-based, 0 when unknown).
    """

    module: str
    call: int
    cell: str
    line: int
    phase: Phase


class Source(msgspec.Struct, frozen=True, array_like=True):
    """A value that exists before the first node.

    ``blob`` and ``inline`` None: the session already holds it on the pool. Otherwise its bytes are in the
    blob of this name (:mod:`djinn_lab.srg.blob_names`), or ``inline`` when they are few. The bytes are
    :attr:`TensorMeta.blob_bytes` long: the memory span in memory order, or the elements in row-major order
    where that is shorter (gaps).
    """

    value: int
    storage: int
    meta: int
    residency: Residency
    blob: str | None
    inline: bytes | None = None

    @property
    def held(self) -> bool:
        """Return whether the session holds the value already."""
        return self.blob is None and self.inline is None


class NodeRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One op. Tuples run parallel: ``outputs[i]`` has meta ``metas[output_metas[i]]`` and lies in
    ``storages[i]`` (an input's storage for views and in-place results).

    ``outputs[i]`` is None where torch returns None there. When ``dynamic`` is true the output shapes
    depend on data: ``output_metas`` is empty, the node is the last one, and the worker reports the metas.
    """

    template: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    output_metas: tuple[int | None, ...]
    storages: tuple[int | None, ...]
    scope: int
    scalars: tuple[Scalar, ...] = ()
    dynamic: bool = False


MATMUL_PRECISIONS = ("highest", "high", "medium")
"""As for ``torch.set_float32_matmul_precision``."""


class NumericSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of the client's torch that change what ops compute; the defaults are torch's own.

    ``deterministic`` and ``warn_only``: as for ``torch.use_deterministic_algorithms``.
    ``fill_uninitialized``: whether these then fill new memory. ``matmul_precision``: one of
    :data:`MATMUL_PRECISIONS`.

    Of accelerators alone: ``replayable``: deterministic wherever torch can be, which the session wants;
    ``cudnn``, ``cudnn_tf32``, ``cudnn_benchmark``, ``cudnn_deterministic``: as in ``torch.backends.cudnn``;
    ``reduce_float16``, ``reduce_bfloat16``, ``accumulate_float16``: what ``torch.backends.cuda.matmul``
    allows; and the kernels of attention that may be chosen.
    """

    default_dtype: str = "float32"
    mkldnn: bool = True
    deterministic: bool = False
    warn_only: bool = False
    fill_uninitialized: bool = True
    flush_denormal: bool = False
    matmul_precision: str = "highest"
    replayable: bool = False
    cudnn: bool = True
    cudnn_tf32: bool = True
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    reduce_float16: bool = True
    reduce_bfloat16: bool = True
    accumulate_float16: bool = False
    flash_attention: bool = True
    mem_efficient_attention: bool = True
    math_attention: bool = True
    cudnn_attention: bool = True

    @property
    def fills(self) -> bool:
        """Return whether ``torch.empty`` gives filled memory."""
        return self.deterministic and self.fill_uninitialized


class Program(msgspec.Struct, frozen=True):
    """The program of one segment of a cell, for a worker.

    ``keep``: produced values that the client still holds (everything else may be freed at its last
    use). ``fetch``: values whose bytes the client wants back. ``release``: values, from any earlier
    program, that are held no more. ``rng_state``: the CPU generator state to start from, when the
    program draws random numbers; the final state is returned. ``settings``: what the ops run under; None for
    torch's defaults.
    """

    metas: Sequence[TensorMeta]
    templates: Sequence[Template]
    scopes: Sequence[Scope]
    sources: Sequence[Source]
    nodes: Sequence[NodeRecord]
    keep: Sequence[int] = ()
    fetch: Sequence[int] = ()
    release: Sequence[int] = ()
    rng_state: bytes | None = None
    settings: NumericSettings | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Program)
_programs_decoder = msgspec.msgpack.Decoder(list[Program])


def encode_program(program: Program) -> bytes:
    """Serialise to MessagePack."""
    return _encoder.encode(program)


def decode_program(data: bytes) -> Program:
    """Parse MessagePack. Raises ``msgspec.DecodeError`` on anything that is not a program."""
    try:
        return _decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"not a program: {error}") from None


def encode_programs(programs: Sequence[Program]) -> bytes:
    """Serialise several programs to MessagePack, in order."""
    return _encoder.encode(list(programs))


def decode_programs(data: bytes) -> list[Program]:
    """Parse several programs. Raises ``msgspec.DecodeError`` on anything else."""
    try:
        return _programs_decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"no programs: {error}") from None


_template_decoder = msgspec.msgpack.Decoder(Template)


def encode_templates(program: Program) -> list[bytes]:
    """Serialise each of a program's templates to MessagePack, as it lies in the encoded program."""
    return list(map(_encoder.encode, program.templates))


def decode_template(data: bytes) -> Template:
    """Parse a template. Raises ``msgspec.DecodeError`` on anything else."""
    try:
        return _template_decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"not a template: {error}") from None


class EncodedProgram:
    """A program as it travels. ``nodes``: how many it has. Decoded at the first look inside."""

    __slots__ = ("_decoded", "data", "nodes")

    def __init__(self, data: bytes, nodes: int) -> None:
        self.data = data
        self.nodes = nodes
        self._decoded: Program | None = None

    @classmethod
    def of(cls, program: Program) -> EncodedProgram:
        encoded = cls(encode_program(program), len(program.nodes))
        encoded._decoded = program
        return encoded

    @property
    def program(self) -> Program:
        if self._decoded is None:
            self._decoded = decode_program(self.data)
        return self._decoded
