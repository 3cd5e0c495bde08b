"""What a pool's REST API answers: one set of structs that the pool encodes and every client decodes.

One module per endpoint family. Decoding ignores fields that it does not know, so that a client can watch a
newer pool. Times are seconds since the epoch by the pool's clock, but for
spans, whose names end in ``_s``.
"""
