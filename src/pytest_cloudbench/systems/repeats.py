"""Repeated transfers as the numbers of one entry.

What may live here: pure functions of what ``transfers`` has measured, as plain data. Means, because the papers print
means; what is not known is left out of none of them: then the mean is not known either.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cloudbench.model import UsageError

__all__ = ["doubts_of", "mean_of", "means", "recovery"]

_MEANS = {
    "start_up": "start_up_s", "completion": "completion_s", "overhead": "overhead", "tue": "tue",
    "wire_bytes": "wire_bytes", "connections": "connections", "cpu_s": "cpu_s", "server_cpu_s": "server_cpu_s",
    "energy_j": "energy_j", "synced_s": "synced_s",
}  # fmt: skip
"""Name in an entry to the quantity of a transfer."""

_ALL, _NOTHING = 0.9, 0.1


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of them is not known, or there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def means(transfers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each quantity over the transfers that came to their end, and how far single ones were apart."""
    ended = [each for each in transfers if each["is_synced"]]
    found: dict[str, Any] = {name: mean_of([each[key] for each in ended]) for name, key in _MEANS.items()}
    for name in ("start_up", "completion", "overhead"):
        values = [each[_MEANS[name]] for each in ended]
        if values and None not in values:
            found |= {f"{name}_min": min(values), f"{name}_max": max(values)}
    rate = [each["content_bytes"] * 8 / each["completion_s"] for each in ended if each["completion_s"]]
    found["upload_rate_bit_per_s"] = statistics.fmean(rate) if len(rate) == len(ended) and rate else None
    return found


def doubts_of(transfers: Sequence[Mapping[str, Any]], repeats: int) -> list[str]:
    """Why the numbers of repeated transfers may be wrong."""
    ended = sum(1 for each in transfers if each["is_synced"])
    doubts = [f"{repeats - ended} of {repeats} transfers did not come to their end"] if ended < repeats else []
    doubts += [each["error"] for each in transfers if each["error"]]
    return list(dict.fromkeys([*doubts, *(reason for each in transfers for reason in each["reasons"])]))


def recovery(undisturbed: Mapping[str, Any], interrupted: Mapping[str, Any]) -> dict[str, Any]:
    """What an interruption cost: the difference between two transfers of equally large sets.

    ``recovery_bytes``: wire bytes beyond those of the undisturbed one (paper 004, Figure 4: total traffic), and as a
    share of the content ``recovery_overhead``. ``again_bytes``: the same for payload that the client sent.
    ``repeated_share``: of what had passed before, how much was sent again on new connections: 0 resumes, 1 starts over.
    ``recovery``: seconds from the interruption until the last payload of the content. ``how_recovered`` says it in
    words. What is not known is None. Raises UsageError where the sets differ.
    """
    if undisturbed["content_bytes"] != interrupted["content_bytes"]:
        raise UsageError("a transfer is compared with one of an equally large set")
    facts, size = interrupted["interrupted"], interrupted["content_bytes"]
    found: dict[str, Any] = dict.fromkeys(
        ("recovery", "recovery_overhead", "recovery_bytes", "again_bytes", "repeated_share"), None
    )  # fmt: skip
    found |= {"interrupted_at_byte": facts.get("at_byte"), "passed_bytes": facts.get("passed_bytes")}
    if interrupted["reasons"] or undisturbed["reasons"] or not undisturbed["is_synced"]:
        return found | {"how_recovered": "unknown"}
    if not interrupted["is_synced"]:
        return found | {"how_recovered": "never"}
    if interrupted["wire_bytes"] is not None and undisturbed["wire_bytes"] is not None:
        found["recovery_bytes"] = interrupted["wire_bytes"] - undisturbed["wire_bytes"]
        found["recovery_overhead"] = found["recovery_bytes"] / size
    found["again_bytes"] = interrupted["up_bytes"] - undisturbed["up_bytes"]
    if not facts.get("happened"):
        return found | {"how_recovered": "not interrupted"}
    found["recovery"] = facts.get("recovery_s")
    if not facts["sent_after_bytes"]:
        return found | {"how_recovered": "connection lived on"}
    lacking = undisturbed["up_bytes"] - facts["passed_bytes"]
    found["repeated_share"] = share = (facts["sent_after_bytes"] - lacking) / facts["passed_bytes"]
    return found | {
        "how_recovered": "starts over" if share >= _ALL else "resumes" if share <= _NOTHING else "sends a part again"
    }  # fmt: skip
