"""Every failure a user can meet. ``assert`` is for our own bugs; these are for the world.

::

    DjinnError
    ├── UserError              what the user wrote cannot work; the message says what to change
    │   ├── OptionError        a magic's or command's option
    │   ├── ProfileError       a profile or setting
    │   ├── CaptureError       a torch feature that cannot be captured
    │   └── StrictError        a value was needed in mid-cell, under --strict
    ├── RemoteError            the op itself failed on the worker (raised as a subclass of its own type, too)
    │   └── DeviceMemoryError  the cell does not fit the device
    ├── PoolError              the pool's fault, or the way to it
    │   ├── PoolNotFound       none runs, or the runtime file is stale
    │   │   └── PoolSilent     none answers at its address now
    │   │       └── PoolWaits  it is down, and waits for what it needs to start again
    │   ├── CannotStartNow     what a pool needs is missing now: space, a file, its database
    │   ├── PoolLost           it went away in mid-cell
    │   │   └── SessionLost    it runs, and the session was closed there
    │   ├── WorkerLost         the device's process died
    │   ├── AuthenticationError
    │   ├── VersionMismatch
    │   ├── Refused            the pool will not run this (op off the list, malformed graph, over a limit)
    │   ├── CancelFailed
    │   └── VerificationError  its results differ from eager torch's, under --verify
    ├── ValueLost              a tensor's value is gone (its worker died, or its cell was cancelled)
    └── (CellCancelled)        a KeyboardInterrupt, so that following cells do not run
"""

from __future__ import annotations

from collections.abc import Sequence


class DjinnError(Exception):
    """Base. ``advice`` says what to do and is printed on a line of its own."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}\n{advice}" if advice else message)
        self.message = message
        self.advice = advice


class _Short:
    """Shown in a notebook as its message alone: the frames are ours and would say nothing."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class UserError(DjinnError):
    """What the user wrote cannot work."""


class OptionError(_Short, UserError):
    """An option of a magic or a command."""


class ProfileError(_Short, UserError):
    """A profile or a setting is invalid."""


class CaptureError(UserError):
    """A torch feature that cannot be captured; the advice names the way around."""


class StrictError(UserError):
    """A cell under ``--strict`` would have been cut."""


class RemoteError(_Short, DjinnError):
    """An op failed on the worker. ``source``: the lines of the user's code around it. ``frames``: of the
    worker, outermost first."""

    def __init__(
        self, message: str, advice: str = "", source: Sequence[str] = (), frames: Sequence[str] = ()
    ) -> None:
        super().__init__(message, advice)
        self.source = tuple(source)
        self.frames = tuple(frames)

    def _render_traceback_(self) -> list[str]:
        first, *notes = super()._render_traceback_()
        folded = f"{len(self.frames)} frames of the worker are left out; .frames of the exception has them."
        return [first, *self.source, *([folded] if self.frames else []), *notes]


class DeviceMemoryError(RemoteError):
    """The device's memory limit would be exceeded."""


class PoolError(_Short, DjinnError):
    """The pool, or the way to it, failed."""


class PoolNotFound(PoolError):
    """No pool runs where one was expected."""


class PoolSilent(PoolNotFound):
    """No pool answers at its address now. One that is started again answers soon."""


class PoolWaits(PoolSilent):
    """The pool is down after a crash, and waits for what it needs to start again, such as space."""


class CannotStartNow(PoolError):
    """A pool cannot start now, and may later: space is missing, or a file or database that it needs."""


class PoolLost(PoolError):
    """The pool went away."""


class SessionLost(PoolLost):
    """The session was closed on the pool, not by its client."""


class WorkerLost(PoolError):
    """A device's process died."""


class AuthenticationError(PoolError):
    """The token was refused."""


class NotProven(AuthenticationError):
    """What answers at the pool's address has not proven that it is the pool; no token was sent."""


class VersionMismatch(PoolError):
    """Client and pool speak different protocol versions."""


class Refused(PoolError):
    """The pool refuses to run this."""


class CancelFailed(PoolError):
    """A cancel was sent and not confirmed."""


class VerificationError(PoolError):
    """Under ``--verify``, a result of the pool differs from what eager torch computes here."""


class ValueLost(_Short, DjinnError):
    """The value of a tensor no longer exists anywhere."""


class CellCancelled(_Short, KeyboardInterrupt):
    """The user stopped the cell. A ``KeyboardInterrupt``, so that the front end stops the queued cells
    too."""
