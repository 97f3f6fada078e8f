"""The OneDrive emulator (Microsoft Graph v1.0): the words that its profiles may use, and ``create``.

Other processes read this module, so it imports nothing heavy: ``create`` imports the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cloudbench.emulators.profile import Profile
    from pytest_cloudbench.emulators.skin import Clock, Skin

CHOICES: Mapping[str, tuple[str, ...]] = {
    "throttle.reason": ("activityLimitReached", "tooManyRequests"),
    "account.type": ("personal", "business", "documentLibrary"),
}
DEFAULTS: Mapping[str, str] = {"throttle.reason": "activityLimitReached", "account.type": "personal"}
LAGS = frozenset({"readiness.list_delay_s", "readiness.delete_delay_s"})


def create(profile: Profile, clock: Clock, seed: int) -> Skin:
    """Return the skin of a new, empty account."""
    from pytest_cloudbench.emulators.onedrive.skin import OneDrive

    return OneDrive(profile, clock, seed)
