"""The devices of this machine: what the pool uses of each, their state now, and the interface to their
workers."""
