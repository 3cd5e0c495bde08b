"""The state that decisions read."""
