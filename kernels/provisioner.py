"""``djinn-provisioner``: the manager of a kernel also frees what its session holds on the pool.

A kernel that ends normally closes its session by itself. One that is killed, crashes or is restarted at once
cannot, and its session would stay detached with all that it holds. No kernel can use that again: the
variables died with the kernel. With this provisioner the manager (JupyterLab's server, for instance) closes
it, as soon as it sees that the process is gone.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_core.paths import jupyter_runtime_dir

from djinn_lab.client.credentials import TOKEN_VARIABLE, token_source
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import DjinnError, PoolNotFound
from djinn_lab.magics.session_note import NOTE_VARIABLE, Note


class DjinnProvisioner(LocalProvisioner):
    """Starts the kernel as Jupyter does, and passes it the place to note its session. A kernel that notes
    none, or has no pool, is managed as ever."""

    _token: str | None = None

    @property
    def note_path(self) -> Path:
        """Beside the kernel's connection file: other users cannot read that directory."""
        return Path(jupyter_runtime_dir()) / f"djinn-{self.kernel_id}.json"

    async def pre_launch(self, **options: Any) -> dict[str, Any]:
        await self._release()
        self.note_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = dict(options.get("env") or os.environ)
        environment[NOTE_VARIABLE] = str(self.note_path)
        self._token = environment.get(TOKEN_VARIABLE)
        prepared: dict[str, Any] = await super().pre_launch(**{**options, "env": environment})
        return prepared

    async def poll(self) -> int | None:
        """The heartbeat: asked every few seconds whether the process lives."""
        status: int | None = await super().poll()
        if status is not None:
            await self._release()
        return status

    async def cleanup(self, restart: bool = False) -> None:
        await super().cleanup(restart=restart)
        await self._release()

    async def _release(self) -> None:
        """Close the noted session, once."""
        path = self.note_path
        try:
            note = msgspec.json.decode(path.read_bytes(), type=Note)
        except FileNotFoundError:
            return
        except msgspec.DecodeError as error:
            self.log.warning("%s is no note of a session: %s", path, error)
            path.unlink(missing_ok=True)
            return
        path.unlink(missing_ok=True)
        await asyncio.to_thread(self._close, note)

    def _close(self, note: Note) -> None:
        try:
            client = PoolClient(note.url, token_source(note.url, self._token)())
            held = any(one.session == note.session for one in client.sessions())
            if held:
                client.close_session(note.session)
            client.close()
        except PoolNotFound:
            return  # it is gone, and with it all that the session held
        except DjinnError as error:
            self.log.warning("session %s of the kernel that ended was not closed: %s", note.session, error)
