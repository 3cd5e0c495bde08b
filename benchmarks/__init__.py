"""Djinn Lab's figures, each beside its baseline in the same run: ``python -m benchmarks``."""
