"""Which extensions there are, as data."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

RECORDER_KEY = "DJINN_LAB_RECORDER_KEY"
"""Environment variable: which of the recorder's variants is built and loaded."""


class UnknownVariant(Exception):
    """An environment variable names a variant that the extension does not have."""


@dataclass(frozen=True)
class NativeExtension:
    """One extension module.

    ``folder`` holds its ``.cpp`` files, relative to the package. ``variants`` maps each variant to its
    compiler flags, the default first; ``chosen_by`` is the environment variable that selects one.
    """

    name: str
    module: str
    folder: str
    needs_torch: bool
    variants: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    chosen_by: str = ""

    def variant(self) -> str:
        """Return the variant that the environment selects. Raises UnknownVariant."""
        default = next(iter(self.variants))
        chosen = os.environ.get(self.chosen_by, "") or default
        if chosen not in self.variants:
            raise UnknownVariant(f"{self.chosen_by}={chosen}: expected {' or '.join(self.variants)}")
        return chosen


EXTENSIONS = {
    extension.name: extension
    for extension in (
        NativeExtension(
            "recorder",
            "djinn_recorder",
            "capture/native",
            needs_torch=True,
            variants={"fake": ("-DDJINN_KEY_FAKE",), "backend": ("-DDJINN_KEY_BACKEND",)},
            chosen_by=RECORDER_KEY,
        ),
        NativeExtension("executor", "djinn_executor", "worker/native", needs_torch=True),
        NativeExtension("wire", "djinn_wire", "srg/native", needs_torch=False),
        NativeExtension("interrupts", "djinn_interrupts", "capture/host/native", needs_torch=False),
    )
}
