"""What a pool and a process that compiles one region say to each other, and what both call the result.

The region (:func:`djinn_lab.srg.region_programs.compilable`, encoded) comes on the standard input; one
:class:`Compilation` leaves as JSON on the standard output."""

from __future__ import annotations

import hashlib

import msgspec

INDUCTOR = "inductor"
"""TorchInductor compiles regions, which is the default."""
CUDA_GRAPHS = "cuda-graphs"
"""Nothing is compiled: a GPU's worker records a region's kernels, and starts them as one."""
BUILT_IN_COMPILERS = (INDUCTOR, CUDA_GRAPHS)
REGION_COMPILERS = "djinn_lab.region_compilers"
"""The entry points of others."""
SAID_CHARS_MAX = 300
OP_BY_OP = "run op by op"
"""How it begins what a report says of a program without compiled regions."""
LIBRARY_SUFFIX = ".so"
GENERATED = "generated"
"""Below the directory of work: sources and objects, of no use once the library is there."""


class Compilation(msgspec.Struct, frozen=True):
    """``problem``: why there is no library, empty where there is one. ``seconds``: what it took."""

    problem: str
    seconds: float


def first_line(error: Exception) -> str:
    """Return what an error says first, without control characters; its type where it says nothing."""
    said = str(error).strip().partition("\n")[0][:SAID_CHARS_MAX]
    return "".join(one if one.isprintable() else "?" for one in said) or type(error).__name__


def region_key(region: bytes) -> str:
    """Name an encoded region: equal regions have equal names."""
    return hashlib.blake2b(region, digest_size=16).hexdigest()


def library_name(key: str) -> str:
    """Return the name of a region's library in the directory of a device."""
    return f"{key}{LIBRARY_SUFFIX}"


encode_compilation = msgspec.json.Encoder().encode
decode_compilation = msgspec.json.Decoder(Compilation).decode
