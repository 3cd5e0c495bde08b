"""Send what was recorded to a backend, in parts of a good length."""
