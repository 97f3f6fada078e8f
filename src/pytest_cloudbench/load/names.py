"""The names of a run's files.

What may live here: pure functions from the sensor and sequence number of a file to its name and path. Imported by
fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

_NUMBERS = "s%05d-%06d"
"""Sensor and sequence number in a name. ``%`` takes two thirds of the time of an f-string here."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of a run's files. It is plain data, so that a channel can carry it.

    Attributes:
        suffix: the end of each name.
        prefix: the beginning of each name.
        key: seed of the random letters between the two. Without it, sensor and sequence number take their place.
        only: the one name of all files, if each upload overwrites the one before.
        folder: their folder below the run's own folder, empty for that folder itself.
    """

    suffix: str = ".bin"
    prefix: str = ""
    key: str = ""
    only: str = ""
    folder: str = ""

    def new(self, sensor: int, seq: int) -> str:
        """Return a unique name for the content of a sensor's operation, even if all overwrite one file."""
        if not self.key:
            return f"{self.prefix}{_NUMBERS % (sensor, seq)}{self.suffix}"
        letters = blake2b(f"{self.key}/{sensor}/{seq}".encode(), digest_size=8).hexdigest()
        return f"{self.prefix}{letters}{self.suffix}"

    def name(self, sensor: int, seq: int) -> str:
        """Return the name of the file that a sensor writes at a sequence number."""
        return self.only or self.new(sensor, seq)

    def namer(self) -> Callable[[int, int], str]:
        """Return a function that does the same as ``name`` in two thirds of the time, for the files of a whole run."""
        template = replace(self, folder="").template("")[1:]
        return (lambda sensor, seq: template % (sensor, seq)) if template else self.name

    def path(self, sensor: int, seq: int) -> str:
        """Return the path of the file of a sensor and sequence number, below the run's folder."""
        name = self.only or self.new(sensor, seq)
        return f"{self.folder}/{name}" if self.folder else name

    def template(self, folder: str) -> str:
        """Return a format whose ``% (sensor, seq)`` is a path below ``folder``. Empty if names have no numbers."""
        if self.key or self.only:
            return ""
        before, after = f"{folder}/{self.path(0, 0)}".rsplit(_NUMBERS % (0, 0), 1)
        return f"{before.replace('%', '%%')}{_NUMBERS}{after.replace('%', '%%')}"
