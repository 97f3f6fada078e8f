"""How long a test waits before it reports a hang, and how many examples a property test tries."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["HANG_S", "register_profiles", "scale_examples"]

HANG_S = 500.0
"""Far above any duration on a slow and busy machine, and below the limit of ``make test`` (``ENDED_AFTER_S``)."""

_THOROUGH_EXAMPLES = 100


def scale_examples(count: int) -> int:
    """Return how many examples a property test tries that deserves ``count``: a quarter of them in the quick tests."""
    return count * settings().max_examples // _THOROUGH_EXAMPLES


def register_profiles() -> None:
    """Register Hypothesis's profiles. On a busy machine an example may take any time, so no test fails as too slow."""
    for name, examples in (("quick", _THOROUGH_EXAMPLES // 4), ("thorough", _THOROUGH_EXAMPLES)):
        checks = [HealthCheck.too_slow]
        settings.register_profile(name, deadline=None, suppress_health_check=checks, max_examples=examples)
    settings.load_profile("quick")  # make test-all asks for the other one by --hypothesis-profile
