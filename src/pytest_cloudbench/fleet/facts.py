"""What the controller and every agent must agree on.

What may live here: the run's facts and names derived from them. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

__all__ = ["Names", "RunFacts", "slug"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is the same for a whole run, on the controller and on every agent (plain data, so xdist can carry it).

    Attributes:
        run_id: UTC time and four hexadecimal digits; names folders on the provider and in the results.
        seed: seed of payloads and random delays.
        time_scale: how much faster than real time intervals and the emulator's clock run.
        max_ops, max_bytes: the budget of the whole run, None for no bound.
        max_lateness_s: the bound on lateness p99.
        results: the folder for this run's records.
        host: see ``agent.host_id``.
        owner: the controller's process, as ``results.owner`` describes it.
    """

    run_id: str
    seed: str
    time_scale: float
    max_ops: int | None
    max_bytes: int | None
    max_lateness_s: float
    results: str
    host: str
    owner: str = ""

    def plain(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


def slug(text: str) -> str:
    """A file name made from a node id."""
    return "".join(character if character.isalnum() or character in "-._" else "_" for character in text)[-150:]


@dataclass(frozen=True, slots=True)
class Names:
    """What the files of a run are called: the only place that names them (plain data, so a channel can carry it).

    Attributes:
        suffix: what a name ends with.
        prefix: what it begins with.
        key: what the random letters between the two are made from; without, sensor and sequence number stand there.
        only: the one name of all files, where each upload overwrites the one before.
        folder: where they are, below the run's own folder; empty for that folder itself.
    """

    suffix: str = ".bin"
    prefix: str = ""
    key: str = ""
    only: str = ""
    folder: str = ""

    def new(self, sensor: int, seq: int) -> str:
        """The name of what a sensor makes at a sequence number, whatever it overwrites; no other one has it."""
        middle = f"s{sensor:05d}-{seq:06d}"
        if self.key:
            middle = blake2b(f"{self.key}/{sensor}/{seq}".encode(), digest_size=8).hexdigest()
        return f"{self.prefix}{middle}{self.suffix}"

    def name(self, sensor: int, seq: int) -> str:
        """The name of the file that a sensor writes at a sequence number."""
        return self.only or self.new(sensor, seq)

    def path(self, sensor: int, seq: int) -> str:
        """Where that file is, below the run's folder."""
        return f"{self.folder}/{self.name(sensor, seq)}" if self.folder else self.name(sensor, seq)
