"""What the files of a run are called.

What may live here: names and paths, as pure functions of a file's place in the load. Imported by fifty agents: keep it
light.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

__all__ = ["FileNames"]


@dataclass(frozen=True, slots=True)
class FileNames:
    """What the files of a run are called: the only place that names them (plain data, so a channel can carry it).

    Attributes:
        suffix: the end of each name.
        prefix: what it begins with.
        key: source of the random letters between the two; without it, the sensor and sequence number take their place.
        only: the one name of all files, if each upload overwrites the one before.
        folder: where they are, below the run's own folder; empty for that folder itself.
    """

    suffix: str = ".bin"
    prefix: str = ""
    key: str = ""
    only: str = ""
    folder: str = ""

    def new(self, sensor: int, seq: int) -> str:
        """Returns a unique name for the content of a sensor's operation, even if all overwrite one file."""
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
