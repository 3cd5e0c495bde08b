"""The recorder in C++: ordinary tensors whose storage is lazy.

``recorder.cpp`` records; it is driven, and asked about what is rare, by
:mod:`djinn_lab.capture.native.recorder`.
"""
