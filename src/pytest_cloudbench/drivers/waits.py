"""How long a service asks its clients to wait: HTTP's ``Retry-After``, which is a number of seconds or a date."""

from __future__ import annotations

from collections.abc import Mapping


def seconds_of(header: object, date: object = None) -> float | None:
    """Return the seconds of a ``Retry-After``, which is a number or a date. None if there is neither.

    ``date`` is the answer's own ``Date``, from which a date counts: a driver has no clock, and the server's differs.
    """
    text = str(header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(str(date or ""))
    except (ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())


def requested_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, by headers whose names are in lower case or in any case."""
    return seconds_of(headers.get("retry-after"), headers.get("date"))
