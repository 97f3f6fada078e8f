"""Whether a capture shows where a client waits, on which chunking and bundling rest (IMC 2013, sections 4.1 and 4.2).

What may live here: what hides exchanges, that is places where the client went on only after everything that it had sent
was acknowledged and the server had spoken.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cloudbench.lab.detect.values import Observation

ASKED_BYTES = 48
"""The fewest bytes in which a server can ask for something by its name or digest."""
_UDP_SHARE = 0.2
_LEAST_ROUND_TRIP_S = 0.005
"""With a shorter round trip, an answer may arrive before the next bytes are sent, though no client waited for it."""


def unseen(observations: Sequence[Observation]) -> str:
    """Why waits are invisible when much goes over UDP; otherwise nothing."""
    if any(each.udp_up_bytes > _UDP_SHARE * each.up_bytes for each in observations):
        return "the client sends over UDP, where acknowledgements do not show"
    return ""


def too_close(observations: Sequence[Observation]) -> str:
    """Why waits are invisible when the server is too near; otherwise nothing."""
    known = [each.round_trip_s for each in observations if each.round_trip_s is not None]
    if not known or min(known) >= _LEAST_ROUND_TRIP_S:
        return ""
    return f"the server is near (round trip {1e3 * min(known):.2g} ms), so it cannot be seen what the client waits for"
