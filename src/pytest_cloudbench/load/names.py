"""What the files of a run, and the entries of a test, are called.

What may live here: names and paths of files, as pure functions of a file's place in the load; names of entries, as pure
functions of their order in the test. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(slots=True)
class Labels:
    """The labels of one test's entries, each given once. A test that is run again begins anew, with the same ones."""

    _given: set[str] = field(default_factory=set)

    def new(self, wanted: str) -> str:
        """Return the label of the next entry: ``wanted``, with ``-2`` if an entry has it already, ``-3``...

        Without a label it is the entry's number, from the second entry on.
        """
        begin = wanted or (str(len(self._given) + 1) if self._given else "")
        label, number = begin, 2
        while label in self._given:
            label, number = f"{begin}-{number}", number + 1
        self._given.add(label)
        return label


def entry_names(stored_name: str, name: str, label: str) -> tuple[str, str]:
    """Return an entry's full name and its name, from the item's name in stored runs and pytest's name for it.

    The full name is what stored runs are found by. In the name, the label belongs to the function, so that
    ``pytest-benchmark compare --group-by=func`` tells the entries of a test apart.
    """
    if not label:
        return stored_name, name
    function, mark, params = name.partition("[")
    return f"{stored_name}#{label}", f"{function}#{label}{mark}{params}"


def label_of(nodeid: str, fullname: str) -> str:
    """Return an entry's label from its full name. It is empty if the entry has none.

    The file's path is not compared: a suite's test is stored under another path than pytest may have in the node id.
    """
    (_, mark, test), (_, _, named) = nodeid.partition("::"), fullname.partition("::")
    return (named.removeprefix(test) if mark else fullname.removeprefix(nodeid)).removeprefix("#")


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
        """Return a unique name for the content of a sensor's operation, even if all overwrite one file."""
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
