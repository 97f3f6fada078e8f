"""The names of a run's files and of a test's entries.

What may live here: pure functions from the sensor and sequence number of a file to its name and path, and from the
order of entries in a test to their names. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b


@dataclass(slots=True)
class Labels:
    """The labels of one test's entries, each used once. A test that is run again begins anew, with the same labels."""

    _used: set[str] = field(default_factory=set)

    def new(self, requested: str) -> str:
        """Return the label of the next entry: ``requested``, with ``-2``, ``-3``... if an entry has it already.

        If ``requested`` is empty, the label is the entry's number from the second entry on, and empty for the first.
        """
        stem = requested or (str(len(self._used) + 1) if self._used else "")
        label, number = stem, 2
        while label in self._used:
            label, number = f"{stem}-{number}", number + 1
        self._used.add(label)
        return label


def entry_names(stored_name: str, name: str, label: str) -> tuple[str, str]:
    """Return an entry's full name and its name, from the item's name in stored runs and pytest's name for it.

    The full name identifies the entry among stored runs. In the name, the label belongs to the function, so that
    ``pytest-benchmark compare --group-by=func`` tells the entries of a test apart.
    """
    if not label:
        return stored_name, name
    function, mark, params = name.partition("[")
    return f"{stored_name}#{label}", f"{function}#{label}{mark}{params}"


def parse_label(nodeid: str, fullname: str) -> str:
    """Return an entry's label from its full name. It is empty if the entry has none.

    The file's path is not compared: a suite's test is stored under another path than pytest may have in the node id.
    """
    (_, mark, test), (_, _, stored_test) = nodeid.partition("::"), fullname.partition("::")
    return (stored_test.removeprefix(test) if mark else fullname.removeprefix(nodeid)).removeprefix("#")


def strip_label(fullname: str) -> str:
    """Return an entry's full name without its label. A ``#`` among the parameters does not begin a label."""
    function, mark, params = fullname.partition("[")
    if not mark:
        return function.partition("#")[0]
    inner, end, _ = params.rpartition("]#")
    return f"{function}[{inner}]" if end else fullname


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
