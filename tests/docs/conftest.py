"""The benchmarks are no part of the installed package: put the checkout itself on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
