"""What kind of data a node works on, judged by the op that consumes it.

An embedding of integers starts ``text``; a 2-d convolution of a 1- or 3-channel batch ``vision``; a 1-d
convolution or an STFT ``audio``. Everything downstream inherits, and ``mixed`` is where two kinds meet. A
program with none of these whose matrix products are all two-dimensional is ``tabular``. The rest is
``unknown``.
"""

from __future__ import annotations

from djinn_lab.srg.program import Modality, NodeRecord, TensorMeta
from djinn_lab.srg.wiring import Wiring

_CONVOLUTIONS = frozenset(("convolution", "_convolution", "mkldnn_convolution", "conv1d", "conv2d"))
_PRODUCTS = frozenset(("mm", "addmm", "linear", "matmul", "bmm", "baddbmm"))
_AUDIO = frozenset(("stft", "_fft_r2c"))
_IMAGE_CHANNELS = (1, 3)
_INDICATIVE = _CONVOLUTIONS | _PRODUCTS | _AUDIO | {"embedding"}


def assign_modality(wiring: Wiring) -> list[Modality]:
    """Return one modality per node."""
    storages = wiring.storages
    by_storage: dict[int | None, Modality | None] = {}
    modalities: list[Modality] = []
    products: list[TensorMeta | None] = []
    indicative = [name in _INDICATIVE for name in wiring.names]
    kind_of, met = by_storage.get, _Met()
    for node, touched, written in zip(wiring.program.nodes, wiring.touched, wiring.writes, strict=True):
        kind = met[tuple(map(kind_of, touched[: len(node.inputs)]))]
        if indicative[node.template]:
            name = wiring.names[node.template]
            if kind is None:
                kind = _starts(name, node, wiring)
            if name in _PRODUCTS:
                products.extend(wiring.metas[value] for value in node.inputs if value is not None)
        modalities.append(kind or "unknown")
        if kind is not None:
            for storage in node.storages:
                if storage is not None:
                    by_storage[storage] = kind
            for value in written:
                by_storage[storages[value]] = kind
    if not by_storage and products and all(meta is not None and _is_table(meta) for meta in products):
        return ["tabular"] * len(modalities)
    return modalities


class _Met(dict[tuple[Modality | None, ...], Modality | None]):
    """What inputs of these kinds make; found once for each combination."""

    def __missing__(self, key: tuple[Modality | None, ...]) -> Modality | None:
        kinds = set(key) - {None}
        found = self[key] = next(iter(kinds), None) if len(kinds) < 2 else "mixed"
        return found


def _is_table(meta: TensorMeta) -> bool:
    return len(meta.shape) <= 2 and meta.dtype.startswith(("float", "bfloat"))


def _starts(name: str, node: NodeRecord, wiring: Wiring) -> Modality | None:
    metas = [wiring.metas[value] for value in node.inputs if value is not None]
    if name == "embedding" and len(metas) > 1 and metas[1] is not None and "int" in metas[1].dtype:
        return "text"
    if name in _AUDIO:
        return "audio"
    if name in _CONVOLUTIONS and len(metas) > 1 and metas[0] is not None and metas[1] is not None:
        dimensions = len(metas[1].shape) - 2
        if dimensions == 1:
            return "audio"
        if dimensions == 2 and metas[0].shape[-3] in _IMAGE_CHANNELS:
            return "vision"
    return None
