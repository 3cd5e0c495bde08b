"""The product's own version. It stands here alone: the package's metadata are made from it."""

from __future__ import annotations

VERSION = "0.2.0"
