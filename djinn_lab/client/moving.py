"""What transfers of a session have done so far, which connections to its pool do not outlive."""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab.client.upload_progress import UploadProgress


class Moving:
    """The progress of uploads, the tensors that are ``held`` for one request, by digest, and the results of
    which only a part has come, by path. ``tick`` is called now and then."""

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self.uploads = UploadProgress()
        self.tick = tick
        self.held: dict[str, bytes] = {}
        self.results: dict[str, bytearray] = {}
