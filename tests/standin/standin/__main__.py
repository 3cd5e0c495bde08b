"""``python -m standin``: build the device's C++ where these sources were not built yet (``make install``)."""

from __future__ import annotations

import argparse
import sys

from standin.building import CannotBuild, build


def main() -> int:
    """Return the exit code: 0, or 1 when nothing could be built."""
    parser = argparse.ArgumentParser(prog="python -m standin", description=__doc__)
    parser.add_argument("--optional", action="store_true", help="succeed when there is no compiler")
    options = parser.parse_args()
    try:
        print(f"standin: {build()}")
    except CannotBuild as error:
        print(f"The stand-in accelerator is not built, and its tests are skipped: {error}.")
        return 0 if options.optional else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
