"""A queue policy by its name, or from a file such as ``djinn-lab simulate --tune`` writes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError
from djinn_lab.jobs.decision import POLICIES, QueuePolicy

SUFFIX = ".json"


def read_policy(name: str) -> str | QueuePolicy:
    """Raises OptionError for what is neither, with what is wrong."""
    if name in POLICIES:
        return name
    if not name.endswith(SUFFIX):
        raise OptionError(
            f"{name!r} is not a queue policy.",
            f"Use one of {', '.join(POLICIES)}; or a {SUFFIX} file that djinn-lab simulate --tune wrote.",
        )
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise OptionError(f"The policy {name} cannot be read: {error.strerror}.") from None
    return parse_policy(content, name)


def parse_policy(content: bytes, name: str) -> QueuePolicy:
    """Return the policy of a file's content. Raises OptionError that names the file, with what is wrong."""
    try:
        decoded = msgspec.json.decode(content)
        fields = QueuePolicy.__struct_fields__
        unknown = decoded.keys() - set(fields) if isinstance(decoded, dict) else ()
        if unknown:
            named = (f"{name}{did_you_mean(name, fields)}" for name in sorted(unknown))
            raise msgspec.ValidationError(f"a policy has no field {', '.join(named)}")
        found = msgspec.convert(decoded, QueuePolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{name} is not a queue policy: {error}.") from None
    if found.name in POLICIES and found != POLICIES[found.name]:
        raise OptionError(
            f"{name} changes the policy {found.name!r} but keeps its name.", 'Give it a "name" of its own.'
        )
    return found


def write_policy(path: Path, policy: QueuePolicy) -> None:
    """Raises OptionError where that cannot be."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(policy), indent=2) + b"\n")
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}.") from None
