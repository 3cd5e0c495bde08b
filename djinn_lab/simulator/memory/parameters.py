"""How fast and how large a simulated device is. Read from JSON, so that a probe of a real one can write
it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from djinn_lab.simulator.device import Hardware

FOLDER = Path(__file__).parent


class DeviceParameters(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``source``: where the numbers come from. A turn computes ``prefill_s_per_token`` for each new token and
    each it rebuilds, plus ``prefill_s_per_token_squared`` for the square of their number, and
    ``decode_s_per_token`` for each it says. ``bytes_per_token``: of a session's state."""

    name: str
    source: str
    bytes_per_token: int
    prefill_s_per_token: float
    prefill_s_per_token_squared: float
    decode_s_per_token: float

    def prefill_s(self, tokens: int) -> float:
        return tokens * self.prefill_s_per_token + tokens * tokens * self.prefill_s_per_token_squared


def load_parameters(name_or_path: str) -> DeviceParameters:
    """``"h200"``, ``"cpu"`` or the path of a JSON file."""
    path = FOLDER / f"{name_or_path}.json"
    if not path.exists():
        path = Path(name_or_path)
    return msgspec.json.decode(path.read_bytes(), type=DeviceParameters)
