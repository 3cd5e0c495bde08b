"""How fast and how large a simulated device is. Read from JSON, so that a probe of a real one can write
it."""

from __future__ import annotations

from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent


class DeviceParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``source``: where the numbers come from. ``memory_bytes``: for sessions, without weights. Copies take
    ``copy_latency_s`` and then ``link_bytes_per_s``, to and from the disk ``disk_bytes_per_s``. A turn
    computes ``prefill_s_per_token`` for each new token and each it rebuilds, plus
    ``prefill_s_per_token_squared`` for the square of their number, and ``decode_s_per_token`` for each it
    says; ``slots`` turns run at once. ``bookkeeping_s``: dropping a copy. ``bytes_per_token``: of a session's
    state."""

    name: str
    source: str
    memory_bytes: int
    host_bytes: int
    disk_bytes: int
    link_bytes_per_s: float
    disk_bytes_per_s: float
    copy_latency_s: float
    bookkeeping_s: float
    bytes_per_token: int
    prefill_s_per_token: float
    prefill_s_per_token_squared: float
    decode_s_per_token: float
    slots: int

    def prefill_s(self, tokens: int) -> float:
        return tokens * self.prefill_s_per_token + tokens * tokens * self.prefill_s_per_token_squared


def load_parameters(name_or_path: str) -> DeviceParameters:
    """``"h200"``, ``"cpu"`` or the path of a JSON file."""
    path = FOLDER / f"{name_or_path}.json"
    if not path.exists():
        path = Path(name_or_path)
    return msgspec.json.decode(path.read_bytes(), type=DeviceParameters)
