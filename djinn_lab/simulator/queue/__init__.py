"""The queue under a simulated clock: the live pool's own decisions, simulated nodes and users."""
