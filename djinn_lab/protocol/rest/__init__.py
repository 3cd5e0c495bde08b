"""What a pool's REST API is asked and answers: one set of structs that the pool and every client share.

One module per endpoint family. Decoding ignores fields that it does not know, so that a client can watch a
newer pool. Requests leave out what was not asked for, since a pool refuses fields that it does not know.
Times are seconds since the epoch by the pool's clock, but for spans, whose names end in ``_s``.
"""
