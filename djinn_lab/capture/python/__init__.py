"""The recorder in Python, used where the native one cannot be built.

A :class:`~djinn_lab.capture.python.tensor.LazyTensor` is a subclass of Tensor that knows its shape, stride
and dtype and names a value on the pool. Start at :class:`djinn_lab.capture.python.recorder.PythonRecorder`.
"""
