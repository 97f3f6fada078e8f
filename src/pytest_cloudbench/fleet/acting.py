"""Acts on a sync client's folder, as tests see them.

What may live here: what stands between ``systems.activity`` and a test: what is missing skips, and what may be wrong is
inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_cloudbench.capture import CaptureUnavailable
from pytest_cloudbench.clients.base import ClientUnavailable
from pytest_cloudbench.fleet.sync import SyncItem, must_have_synced
from pytest_cloudbench.systems.activity import Act, Activity, Window

__all__ = ["watch"]


def watch(item: SyncItem, acts: Sequence[Act]) -> tuple[Window | None, list[Window]]:
    """The login, where the client starts with it, and what each act showed, in their order.

    Skips the test where something that it needs is not here, and where a number may be wrong. Fails it for a client
    that never synced. Raises ClientError when the client does not start.
    """
    session = item.lab.session
    activity = Activity(session)
    try:
        windows = activity.watch(acts)
    except (ClientUnavailable, CaptureUnavailable) as error:
        pytest.skip(f"client {item.spec}: {error}")
    must_have_synced(item.spec, session)
    login = [] if activity.login is None else [activity.login]
    if bad := [f"{each.label}: {reason}" for each in (*login, *windows) for reason in each.reasons]:
        pytest.skip(f"inconclusive: {'; '.join(dict.fromkeys(bad))}")
    if unsized := [each.label for each in (*login, *windows) if each.wire_bytes is None]:
        pytest.skip(f"inconclusive: {', '.join(unsized)}: the capture does not have sizes as they are on the wire")
    return activity.login, windows
