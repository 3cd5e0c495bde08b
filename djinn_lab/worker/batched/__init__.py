"""Segments of several sessions as one batch: an op that multiplies rows by a weight that all of them share
runs once for all rows. What is decided here never keeps a segment from running; it then runs alone."""
