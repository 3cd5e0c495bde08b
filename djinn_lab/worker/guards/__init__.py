"""What kernels trust their caller with, checked on the real tensors before the call.

Torch checks most arguments above its kernels, but not those of ops that only autograd is meant to call, and
not everything that an index may be. A call that would reach beyond its tensors raises
:class:`~djinn_lab.errors.Refused` instead. Ops without a guard cost nothing. ``make sweep-hostile`` finds
those that need one.
"""

from djinn_lab.worker.guards.table import Guard, find_guard

__all__ = ["Guard", "find_guard"]
