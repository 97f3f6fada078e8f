"""What the controller and every agent must agree on.

What may live here: the run's facts and names derived from them. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RunFacts", "object_name", "slug"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is the same for a whole run, on the controller and on every agent (plain data, so xdist can carry it).

    Attributes:
        run_id: UTC time and four hexadecimal digits; names folders on the provider and in the results.
        seed: what payloads and random delays are made from.
        time_scale: how much faster than real time intervals and the emulator's clock run.
        max_ops, max_bytes: the budget of the whole run, None for no bound.
        max_lateness_s: the bound on lateness p99.
        results: the folder for this run's records.
        host: see ``agent.host_id``.
    """

    run_id: str
    seed: str
    time_scale: float
    max_ops: int | None
    max_bytes: int | None
    max_lateness_s: float
    results: str
    host: str

    def plain(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


def slug(text: str) -> str:
    """A file name made from a node id."""
    return "".join(character if character.isalnum() or character in "-._" else "_" for character in text)[-150:]


def object_name(sensor: int, seq: int, suffix: str = "") -> str:
    """The name of the file that a sensor writes at a sequence number."""
    return f"s{sensor:05d}-{seq:06d}{suffix or '.bin'}"
