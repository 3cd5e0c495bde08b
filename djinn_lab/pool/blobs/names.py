"""Names of uploads and results that are safe as names of files."""

from __future__ import annotations

import re
from pathlib import Path

from djinn_lab.errors import Refused
from djinn_lab.srg.blob_names import is_digest, is_drawn

_NAME = re.compile(r"result-[0-9a-f-]{32,36}")


def checked_name(name: str) -> str:
    """``name`` itself. Raises Refused unless it is a digest or a drawn name, so that it is safe as a file
    name."""
    return name if is_drawn(name) else checked_digest(name)


def checked_digest(digest: str) -> str:
    """``digest`` itself. Raises Refused unless it is one, so that it is safe as a file name."""
    if not is_digest(digest):
        raise Refused(f"{digest[:80]!r} is not a BLAKE3 digest (64 hexadecimal digits).")
    return digest


def checked_result_name(name: str) -> str:
    """``name`` itself. Raises Refused unless it is a result's name."""
    if not _NAME.fullmatch(name):
        raise Refused(f"{name[:80]!r} is not the name of a result.")
    return name


def user_directory(user: str) -> str:
    """Return the name of a user's directory: a user's name may have a slash."""
    return user.encode().hex()


def user_of(directory: Path) -> str:
    return bytes.fromhex(directory.name).decode()
