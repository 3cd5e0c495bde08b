"""Note a kernel's session for its manager (``kernels/provisioner.py``)."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from djinn_lab.client.session import Session

log = logging.getLogger(__name__)
NOTE_VARIABLE = "DJINN_SESSION_FILE"


class Note(msgspec.Struct, frozen=True):
    url: str
    session: str


class SessionNote:
    """The note; ``path`` None: none was asked for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._noted: Note | None = None

    @classmethod
    def from_environment(cls) -> SessionNote:
        given = os.environ.get(NOTE_VARIABLE)
        return cls(Path(given) if given else None)

    def update(self, session: Session) -> None:
        """Write the note when it is new: the first time, and after a pool was started again."""
        if self._path is None or not session.connected:
            return
        note = Note(session.url, session.welcome.session)
        if note == self._noted:
            return
        self._noted = note
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(note))
            temporary.chmod(0o600)
            temporary.replace(self._path)
        except OSError as error:
            log.warning("the session of this kernel was not noted for its manager: %s", error)

    def remove(self) -> None:
        """Remove the note, since the session was closed."""
        if self._path is not None and self._noted is not None:
            self._path.unlink(missing_ok=True)
            self._noted = None
