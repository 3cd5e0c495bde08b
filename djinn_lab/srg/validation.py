"""Checks a program that came from outside before it is trusted.

The decoder has already checked types; this checks meaning: every index points somewhere, every value exists
before it is read (which also rules out cycles), every op is on the allow-list, and every size is sane.
Time is linear in the program; a violation raises :class:`~djinn_lab.errors.Refused` and names the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.srg.arguments import holes_that_need_a_tensor, wrong_arguments
from djinn_lab.srg.blob_names import is_digest, is_drawn
from djinn_lab.srg.ops import allowed_ops, leaves_of, written_holes
from djinn_lab.srg.plan_key import TEMPLATE_BYTES_MAX, TEMPLATES_MAX, Contents
from djinn_lab.srg.program import (
    DTYPE_BYTES,
    MATMUL_PRECISIONS,
    Atom,
    Leaf,
    NodeRecord,
    NumericSettings,
    Program,
    ScalarHole,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
    decode_template,
    encode_templates,
)
from djinn_lab.units import format_bytes

_DEVICE = re.compile(r"(cpu|cuda)(:\d{1,3})?")
_ATOM_NAMES: dict[str, Collection[str]] = {
    "dtype": DTYPE_BYTES.keys(),
    "layout": {"strided"},
    "memory_format": {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"},
}
_DEFAULT_DTYPES = ("float16", "bfloat16", "float32", "float64")
_ELEMENTS_MAX = 2**62
_ID_MAX = 2**63


class ProgramLimits(msgspec.Struct, frozen=True):
    """The largest program that is accepted. ``tensor_bytes_max`` bounds one tensor's span in memory,
    ``arguments_max`` the literals and holes of one op."""

    nodes_max: int = 1_000_000
    table_entries_max: int = 1_000_000
    sources_max: int = 1_000_000
    tensor_bytes_max: int = 2**40
    rank_max: int = 64
    arguments_max: int = 1_000_000
    text_chars_max: int = 4096
    rng_state_bytes_max: int = 2**16


def validate_program(program: Program, limits: ProgramLimits | None = None) -> None:
    """Raise :class:`Refused` unless a worker may run ``program``."""
    limits = limits or _LIMITS
    _check_counts(program, limits)
    if program.settings is not None:
        _check_settings(program.settings)
    holes = validate_sizes(program.metas, encode_templates(program), limits)
    known = validate_content(program, limits)
    _check_nodes(program, holes, known)
    _check_references(program, known)


def validate_sizes(
    metas: Sequence[TensorMeta], templates: Sequence[bytes], limits: ProgramLimits | None = None
) -> list[Holes]:
    """Check what may differ between programs of equal structure (:func:`~djinn_lab.srg.plan_key.resizable`);
    return what nodes must fill in each of the ``templates``, which are encoded."""
    limits = limits or _LIMITS
    for index, meta in enumerate(metas):
        _check_meta(index, meta, limits)
    return [_holes_of(index, template, limits) for index, template in enumerate(templates)]


def validate_content(program: Program | Contents, limits: ProgramLimits | None = None) -> set[int | None]:
    """Check the part that :func:`~djinn_lab.srg.plan_key.plan_key` does not cover; return the values that
    exist before the first node."""
    limits = limits or _LIMITS
    if program.rng_state is not None and len(program.rng_state) > limits.rng_state_bytes_max:
        _refuse(f"its random generator state has {len(program.rng_state)} bytes")
    for index, scope in enumerate(program.scopes):
        _check_scope(index, scope, limits)
    return _check_sources(program.sources, program.metas)


def _refuse(problem: str) -> NoReturn:
    raise Refused(
        f"The graph was refused: {problem}.",
        "Nothing of this segment ran. Graphs are made by djinn_lab itself: restart the notebook's kernel, "
        "and check that client and pool have the same version (djinn-lab version).",
    )


def _refuse_tensor(what: str, most: str) -> NoReturn:
    raise Refused(
        f"{what} is too large for a pool, which takes at most {most}.",
        "Nothing of this segment ran. Make it smaller, or run that cell with %%local.",
    )


def _check_counts(program: Program, limits: ProgramLimits) -> None:
    tables = ("metas", "templates", "scopes")
    bounds = {"nodes": limits.nodes_max, "sources": limits.sources_max}
    bounds |= dict.fromkeys(tables, limits.table_entries_max)
    for name, bound in bounds.items():
        count = len(getattr(program, name))
        if count > bound:
            _refuse(f"it has {count} {name}, and at most {bound} are allowed")


def _check_settings(settings: NumericSettings) -> None:
    if settings.default_dtype not in _DEFAULT_DTYPES:
        _refuse(f"its default dtype is {settings.default_dtype[:40]!r}")
    if settings.matmul_precision not in MATMUL_PRECISIONS:
        _refuse(f"its matmul precision is {settings.matmul_precision[:40]!r}")


def _check_meta(index: int, meta: TensorMeta, limits: ProgramLimits) -> None:
    here = f"meta {index}"
    item_bytes = DTYPE_BYTES.get(meta.dtype)
    if item_bytes is None:
        _refuse(f"{here} has the unknown dtype {meta.dtype[:40]!r}")
    rank = len(meta.shape)
    if rank > limits.rank_max:
        _refuse_tensor(f"A tensor of {rank} dimensions", f"{limits.rank_max} dimensions")
    if len(meta.stride) != rank:
        _refuse(f"{here} has {rank} sizes but {len(meta.stride)} strides")
    elements = last = 1
    for size, step in zip(meta.shape, meta.stride, strict=True):
        if size < 0:
            _refuse(f"{here} has the negative size {size} in shape {meta.shape}")
        if step < 0:
            _refuse(f"{here} has the negative stride {step}")
        elements *= max(size, 1)
        last += (size - 1) * step if size > 0 else 0
        if elements > _ELEMENTS_MAX or last > _ELEMENTS_MAX:
            _refuse(f"{here} overflows: shape {meta.shape} with stride {meta.stride}")
    if meta.span_bytes > limits.tensor_bytes_max:
        what = f"A tensor of shape {meta.shape}, which needs {format_bytes(meta.span_bytes)},"
        _refuse_tensor(what, format_bytes(limits.tensor_bytes_max))


_LIMITS = ProgramLimits()


class Holes(NamedTuple):
    """A template's tensor holes, of which some ``needed`` a tensor and some are ``written``, its scalar holes
    and its op."""

    tensors: int
    scalars: int
    op: str
    needed: frozenset[int]
    written: tuple[int, ...]


def _holes_of(index: int, encoded: bytes, limits: ProgramLimits) -> Holes:
    if limits is not _LIMITS or len(encoded) > TEMPLATE_BYTES_MAX:
        return _check_template(index, decode_template(encoded), limits)
    try:
        return _known_holes(encoded)
    except Refused:
        _check_template(index, decode_template(encoded), limits)  # to name its number
        raise


@lru_cache(TEMPLATES_MAX)
def _known_holes(encoded: bytes) -> Holes:
    """Check a template that any program has."""
    return _check_template(0, decode_template(encoded), _LIMITS)


def _check_template(index: int, template: Template, limits: ProgramLimits) -> Holes:
    op = template.op
    if op not in allowed_ops():
        _refuse(f"template {index} names the op {op[:80]!r}, which is not on the allow-list")
    here = f"template {index} ({op})"
    tensors = scalars = leaves = 0
    for leaf in leaves_of(template):
        leaves += 1
        if type(leaf) is TensorHole:
            tensors += 1
        elif type(leaf) is ScalarHole:
            scalars += 1
        else:
            _check_leaf(here, leaf, limits)
    if leaves > limits.arguments_max:
        _refuse(f"{here} has {leaves} arguments, and at most {limits.arguments_max} are allowed")
    wrong = wrong_arguments(template)
    if wrong is not None:
        _refuse(f"{here} {wrong}")
    written = tuple(written_holes(template))
    return Holes(tensors, scalars, op, holes_that_need_a_tensor(template), written)


def _check_leaf(here: str, leaf: Leaf, limits: ProgramLimits) -> None:
    if isinstance(leaf, Atom):
        known = _ATOM_NAMES.get(leaf.kind)
        if not (_DEVICE.fullmatch(leaf.name) if known is None else leaf.name in known):
            _refuse(f"{here} has the unknown {leaf.kind} {leaf.name[:40]!r}")
    elif isinstance(leaf, str) and len(leaf) > limits.text_chars_max:
        _refuse(f"{here} has a text argument of {len(leaf)} characters")


def _check_scope(index: int, scope: Scope, limits: ProgramLimits) -> None:
    if scope.call < 0 or scope.line < 0:
        _refuse(f"scope {index} has the negative call or line number {min(scope.call, scope.line)}")
    if max(len(scope.module), len(scope.cell)) > limits.text_chars_max:
        _refuse(f"scope {index} has a name longer than {limits.text_chars_max} characters")


def _check_sources(sources: Sequence[Source], metas: Sequence[TensorMeta]) -> set[int | None]:
    """The values that exist before the first node, and None, which any optional input may be."""
    known: set[int | None] = {None}
    for source in sources:
        if not (0 <= source.value < _ID_MAX and 0 <= source.storage < _ID_MAX):
            _refuse(f"source value {source.value} or its storage {source.storage} is not a valid id")
        if source.value in known:
            _refuse(f"value {source.value} occurs twice among the sources")
        if not 0 <= source.meta < len(metas):
            _refuse(f"source value {source.value} refers to meta {source.meta} of {len(metas)}")
        _check_bytes(source, metas[source.meta])
        known.add(source.value)
    return known


def _check_bytes(source: Source, meta: TensorMeta) -> None:
    if source.blob is not None and not (is_digest(source.blob) or is_drawn(source.blob)):
        _refuse(f"the blob of source value {source.value} is not a BLAKE3 hex digest or a drawn name")
    if source.inline is not None:
        if source.blob is not None:
            _refuse(f"source value {source.value} has both a blob and inline bytes")
        if len(source.inline) != meta.blob_bytes:
            _refuse(
                f"source value {source.value} has {len(source.inline)} inline bytes, "
                f"but its meta needs {meta.blob_bytes}"
            )


def _check_nodes(program: Program, holes: list[Holes], known: set[int | None]) -> None:
    """Check each node against what exists before it, and add what it produces to ``known``."""
    metas_allowed: set[int | None] = {None, *range(len(program.metas))}
    scope_count, template_count, last = len(program.scopes), len(holes), len(program.nodes) - 1
    for index, node in enumerate(program.nodes):
        inputs, outputs, metas = node.inputs, node.outputs, node.output_metas
        if not 0 <= node.template < template_count:
            _refuse(f"node {index} refers to template {node.template} of {template_count}")
        tensors, scalars, op, needed, written = holes[node.template]
        if not 0 <= node.scope < scope_count:
            _refuse(f"node {index} ({op}) refers to scope {node.scope} of {scope_count}")
        if len(inputs) != tensors or len(node.scalars) != scalars:
            _refuse(
                f"node {index} ({op}) has {len(inputs)} inputs and {len(node.scalars)} scalars, "
                f"but its template has {tensors} and {scalars} holes"
            )
        if not known.issuperset(inputs):
            missing = [value for value in inputs if value not in known]
            _refuse(f"node {index} ({op}) reads value {missing[0]}, which nothing before it produces")
        if None in inputs and any(inputs[place] is None for place in needed):
            _refuse(f"node {index} ({op}) has no value where it needs a tensor")
        if not metas_allowed.issuperset(metas):
            _refuse(f"node {index} ({op}) has an output meta outside 0..{len(program.metas) - 1}")
        if node.dynamic:
            if index != last:
                _refuse(f"node {index} ({op}) has sizes that depend on data but is not the last node")
            if metas:
                _refuse(f"node {index} ({op}) has sizes that depend on data and yet states output metas")
        elif len(metas) != len(outputs):
            _refuse(f"node {index} ({op}) has {len(outputs)} outputs, {len(metas)} metas")
        if not _makes_one(node, known):
            _check_outputs(index, op, node, known, written)
        known.update(outputs)


def _makes_one(node: NodeRecord, known: set[int | None]) -> bool:
    """Return whether a node makes one new value, as most do: there is nothing else to check of that."""
    if not len(node.outputs) == len(node.storages) == len(node.output_metas) == 1:
        return False
    value, storage = node.outputs[0], node.storages[0]
    if value is None or storage is None or node.output_metas[0] is None:
        return False
    return value not in known and 0 <= value < _ID_MAX and 0 <= storage < _ID_MAX


def _check_outputs(
    index: int, op: str, node: NodeRecord, known: set[int | None], written: Sequence[int]
) -> None:
    outputs = node.outputs
    if len(node.storages) != len(outputs):
        _refuse(f"node {index} ({op}) has {len(outputs)} outputs but {len(node.storages)} storages")
    if not known.isdisjoint(outputs):
        given = {None, *(node.inputs[place] for place in written)}
        again = [value for value in outputs if value in known and value not in given]
        if again:
            _refuse(f"node {index} ({op}) produces value {again[0]}, which exists already")
    for position, (value, storage) in enumerate(zip(outputs, node.storages, strict=True)):
        has_meta = value is not None if node.dynamic else node.output_metas[position] is not None
        if (value is None) != (storage is None) or has_meta != (value is not None):
            _refuse(f"output {position} of node {index} ({op}) has only some of value, meta and storage")
        if value is None or storage is None:
            continue
        if not (0 <= value < _ID_MAX and 0 <= storage < _ID_MAX):
            invalid = storage if 0 <= value < _ID_MAX else value
            _refuse(f"node {index} ({op}) has the invalid id {invalid}")
        if position and value in outputs[:position]:
            _refuse(f"node {index} ({op}) produces value {value} twice")


def _check_references(program: Program, known: set[int | None]) -> None:
    for name in ("keep", "fetch"):
        for value in getattr(program, name):
            if value not in known:
                _refuse(f"{name} names value {value}, which this graph neither receives nor produces")
