"""One process per device and trust group: runs programs op by op, owns the device's values.

``python -m djinn_lab.worker`` is started by the pool's local launcher and speaks
:mod:`djinn_lab.protocol.worker` over an inherited socket.
"""
