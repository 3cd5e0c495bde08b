"""The semantically rich graph: programs as data, their checks, and the annotated graph built from them."""
