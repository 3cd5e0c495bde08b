"""The rules of a decision: policies, order keys, limits, guarantees, preemption."""
