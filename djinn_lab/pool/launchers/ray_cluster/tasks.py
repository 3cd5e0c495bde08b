"""Tasks that run beside others: where one fails, the log says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


def begin(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    """Begin a task on the running event loop. ``name``: what it looks after."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_say_if_failed)
    return task


def _say_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("nothing looks after %s any more", task.get_name(), exc_info=task.exception())
