"""The conditions under which a capture shows where a client waits (IMC 2013, sections 4.1 and 4.2).

Chunking and bundling rest on exchanges, places where the client went on only after everything that it had sent was
acknowledged and the server had spoken. This module tells when a capture cannot show them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.lab.detect.values import Observation

ASKED_BYTES = 48
"""The fewest bytes in which a server can ask for something by its name or digest."""
_UDP_SHARE = 0.2
_LEAST_ROUND_TRIP_S = 0.005
"""With a shorter round trip, an answer may arrive before the next bytes are sent, though no client waited for it."""


def explain_hidden_waits(observations: Sequence[Observation]) -> str:
    """Explain why waits are invisible when much goes over UDP, or return nothing."""
    if any(observation.udp_up_bytes > _UDP_SHARE * observation.up_bytes for observation in observations):
        return "the client sends over UDP, where acknowledgements do not show"
    return ""


def explain_short_trips(observations: Sequence[Observation]) -> str:
    """Explain why waits are invisible when the server is too near, or return nothing."""
    trips_s = [observation.round_trip_s for observation in observations if observation.round_trip_s is not None]
    if not trips_s or min(trips_s) >= _LEAST_ROUND_TRIP_S:
        return ""
    return (
        f"the server is near (round trip {1e3 * min(trips_s):.2g} ms), so it cannot be seen what the client waits for"
    )
