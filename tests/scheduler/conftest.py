"""The graph tests' builders serve here too; examples take as long as the machine is busy."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent.parent / "srg"))
settings.register_profile("graphs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("graphs")
