"""The OneDrive emulator (Microsoft Graph v1.0): what other processes need from it without importing it.

What may live here: the words that a profile of this API may use, and ``create``, which makes the skin.
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
    """Returns the skin of a new, empty account."""
    from pytest_cloudbench.emulators.onedrive.skin import OneDrive

    return OneDrive(profile, clock, seed)
