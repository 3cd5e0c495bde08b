"""Codes by which the user who runs a dashboard gets in without typing: made from a secret that only that
user's programs can read, good for some minutes, and taken once."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode

from djinn_lab.errors import PoolError
from djinn_lab.protocol.runtime_file import runtime_directory
from djinn_lab.system.files import is_private

SECRET_FILE = "dashboard.secret"
PARAMETER = "login"
"""Of the address, with a code."""
HEADER = "X-Djinn-Login"
"""Of a request that a program of this account passes on, with a code."""
GOOD_FOR_S = 600.0


def make_code() -> str:
    """Make a code. Raises PoolError when the secret can be read by others."""
    claim = f"{int(time.time() + GOOD_FOR_S)}-{secrets.token_hex(16)}"
    return f"{claim}-{_signature(claim)}"


def is_good(code: str) -> bool:
    """Return whether a code was made here and is still good. Raises PoolError when the secret can be read by
    others."""
    claim, _, signature = code.rpartition("-")
    until, _, _ = claim.partition("-")
    if not claim.isascii() or not until.isdecimal() or not signature.isascii():
        return False
    return hmac.compare_digest(signature, _signature(claim)) and int(until) > time.time()


def with_code(url: str) -> str:
    """Add a code to the address of a dashboard."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({PARAMETER: make_code()})}"


def _signature(claim: str) -> str:
    return hmac.new(_secret(), claim.encode(), sha256).hexdigest()


def _secret() -> bytes:
    path = runtime_directory() / SECRET_FILE
    if not path.exists():
        _write_secret(path)
    status = path.stat()
    if not is_private(status):
        raise PoolError(f"{path} can be read by other users, so it is no secret.", f"Delete {path}.")
    return path.read_bytes()


def _write_secret(path: Path) -> None:
    """Write it whole, or leave the one that another process wrote first."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
