"""A pool of this process's torch, until its standard input ends.

``python -m sweeps.torch_versions.pool DIRECTORY`` prints the variables with which clients find it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from real_pool import PoolUnderTest

from djinn_lab.protocol.runtime_file import DIRECTORY_VARIABLE

MEMORY_BYTES = 2 * 2**30


def main() -> None:
    with PoolUnderTest(Path(sys.argv[1]), devices="cpu:1", memory_bytes=MEMORY_BYTES) as pool:
        print(json.dumps({DIRECTORY_VARIABLE: str(pool.directory)}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
