"""Notebook side: torch calls become nodes of a graph instead of being computed.

:mod:`djinn_lab.capture.recorders` chooses between two recorders with one interface: ``native`` (C++, ordinary
tensors whose storage is lazy) and ``python`` (a subclass of Tensor, where nothing can be built). What both
need lies beside them: rules for results (``inference``, ``shape_rules``), the segments in which recorded
nodes leave for the pool (``segment``), replaced functions of torch, and rehearsals.

Inside a captured cell every torch op is recorded; anywhere else, an op on a lazy tensor fetches what it
reads and runs here.
"""
