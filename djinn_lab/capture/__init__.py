"""Notebook side: torch calls become nodes of a graph instead of being computed.

Start at :class:`djinn_lab.capture.recorder.Recorder`. A :class:`~djinn_lab.capture.tensor.LazyTensor`
knows its shape, stride and dtype and names a value on the pool; inside
:class:`~djinn_lab.capture.modes.Capturing` every torch op is recorded; anywhere else, an op on a lazy
tensor fetches what it reads and runs here.
"""
