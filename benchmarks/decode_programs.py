"""Programs of a small decoder as a worker gets them, one for the prompt and one a token: matrix products, a
key-value cache that grows by concatenation, attention."""

from __future__ import annotations

from typing import Any

from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
)

LAYERS = 4
HEADS = 8
WIDTH = 256
HEAD_WIDTH = WIDTH // HEADS
HOLE = TensorHole()


def _meta(*shape: int) -> TensorMeta:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorMeta("float32", shape, tuple(reversed(stride)))


class Decoder:
    """Write the programs of one session. Ids count on from program to program."""

    def __init__(self) -> None:
        self.values = 0
        self._metas: list[TensorMeta] = []
        self._weights: list[int] = []
        self._caches: list[int] = []
        self._shapes: dict[int, TensorMeta] = {}
        self._begin()

    def _begin(self) -> None:
        self._layouts: list[TensorMeta] = []
        self._templates: list[Template] = []
        self._sources: list[Source] = []
        self._nodes: list[NodeRecord] = []

    def prefill(self, tokens: int, more_values: int = 0) -> Program:
        """Weights, caches of ``tokens`` tokens, and small tensors."""
        more = [self._made(_meta(WIDTH)) for _ in range(more_values)]
        self._weights = [self._made(_meta(WIDTH, WIDTH)) for _ in range(6 * LAYERS)]
        shape = _meta(1, HEADS, 1, HEAD_WIDTH)
        first = [self._made(shape) for _ in range(2 * LAYERS)]
        rest = self._made(_meta(1, HEADS, tokens - 1, HEAD_WIDTH))
        self._caches = [self._append(past, rest) for past in first]
        return self._program(keep=(*self._weights, *self._caches, *more))

    def decode(self) -> Program:
        """Write the program of one token."""
        released = tuple(self._caches)
        for value in (*self._weights, *self._caches):
            self._source(value)
        x = self._made(_meta(1, WIDTH))
        caches: list[int] = []
        for layer in range(LAYERS):
            weights = self._weights[6 * layer : 6 * layer + 6]
            query, key, value = (self._op("aten.mm.default", x, weight) for weight in weights[:3])
            heads = [self._heads(one) for one in (query, key, value)]
            keys = self._append(self._caches[2 * layer], heads[1])
            values = self._append(self._caches[2 * layer + 1], heads[2])
            caches += [keys, values]
            attended = self._attend(heads[0], keys, values)
            x = self._op("aten.mm.default", attended, weights[3])
            x = self._op("aten.relu.default", self._op("aten.mm.default", x, weights[4]))
            x = self._op("aten.mm.default", x, weights[5])
        self._caches = caches
        return self._program(keep=tuple(caches), release=released)

    def _attend(self, query: int, keys: int, values: int) -> int:
        tokens = self._shapes[keys].shape[2]
        flat_keys = self._view(keys, _meta(HEADS, tokens, HEAD_WIDTH))
        flat_values = self._view(values, _meta(HEADS, tokens, HEAD_WIDTH))
        flat_query = self._view(query, _meta(HEADS, HEAD_WIDTH, 1))
        scores = self._op("aten.bmm.default", flat_keys, flat_query, meta=_meta(HEADS, tokens, 1))
        shares = self._op("aten._softmax.default", scores, args=[HOLE, 1, False])
        turned = self._view(shares, _meta(HEADS, 1, tokens))
        mixed = self._op("aten.bmm.default", turned, flat_values, meta=_meta(HEADS, 1, HEAD_WIDTH))
        return self._view(mixed, _meta(1, WIDTH))

    def _heads(self, value: int) -> int:
        return self._view(value, _meta(1, HEADS, 1, HEAD_WIDTH))

    def _append(self, past: int, tokens: int) -> int:
        count = self._shapes[past].shape[2] + self._shapes[tokens].shape[2]
        meta = _meta(1, HEADS, count, HEAD_WIDTH)
        return self._op("aten.cat.default", past, tokens, meta=meta, args=[[HOLE, HOLE], -2])

    def _view(self, value: int, meta: TensorMeta) -> int:
        return self._op("aten.view.default", value, meta=meta, args=[HOLE, list(meta.shape)])

    def _made(self, meta: TensorMeta) -> int:
        """At random, so that no two sessions have bytes in common."""
        return self._op("aten.rand.default", meta=meta, args=[list(meta.shape)])

    def _source(self, value: int) -> None:
        self._layouts.append(self._shapes[value])
        self._sources.append(Source(value, value, len(self._layouts) - 1, "input", None))

    def _op(
        self, name: str, *inputs: int, meta: TensorMeta | None = None, args: list[Any] | None = None
    ) -> int:
        self.values += 1
        output, shape = self.values, meta or self._shapes[inputs[0]]
        self._shapes[output] = shape
        self._layouts.append(shape)
        self._templates.append(Template(name, [HOLE] * len(inputs) if args is None else args, {}))
        place = len(self._layouts) - 1, len(self._templates) - 1
        self._nodes.append(NodeRecord(place[1], inputs, (output,), (place[0],), (output,), 0))
        return output

    def _program(self, keep: tuple[int, ...] = (), release: tuple[int, ...] = ()) -> Program:
        scopes = [Scope("", 0, "benchmark", 0, "decode")]
        made = Program(self._layouts, self._templates, scopes, self._sources, self._nodes, keep, (), release)
        self._begin()
        return made
