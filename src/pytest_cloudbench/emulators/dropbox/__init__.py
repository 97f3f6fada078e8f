"""The Dropbox emulator: the words that a profile of this API may use, and ``create``, which makes its skin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cloudbench.emulators.profile import Profile
    from pytest_cloudbench.emulators.skin import Clock, Skin

CHOICES: Mapping[str, tuple[str, ...]] = {
    "throttle.reason": ("too_many_write_operations", "too_many_requests"),
    "account.type": ("basic", "pro", "business"),
}
DEFAULTS: Mapping[str, str] = {"throttle.reason": "too_many_write_operations", "account.type": "business"}

LAGS = frozenset({"readiness.list_delay_s", "readiness.delete_delay_s", "readiness.replica_lag_s"})


def create(profile: Profile, clock: Clock, seed: int) -> Skin:
    """Return the skin of a new, empty account."""
    from pytest_cloudbench.emulators.dropbox.skin import Dropbox

    return Dropbox(profile, clock, seed)
