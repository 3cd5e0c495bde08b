"""Examples take as long as the machine is busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("graphs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("graphs")
