"""The names of a test's entries: how they are made, and taken apart again.

An entry's full name is that of its test in stored runs, and its label: ``loads/test_load.py::test_it[memory]#up``.

What may live here: pure functions on names. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class EntryName:
    """The parts of an entry's full name.

    Attributes:
        path: the test's file, empty for an entry that is a file itself.
        function: the test function, after its class if it has one.
        parameters: the test's parameters as pytest writes them, with their brackets. Empty if there are none.
        label: the entry's label, empty if it has none.
    """

    path: str
    function: str
    parameters: str = ""
    label: str = ""

    @property
    def test(self) -> str:
        """The test function with its path, which all parameters and labels have in common."""
        return f"{self.path}::{self.function}" if self.path else self.function

    @property
    def item(self) -> str:
        """The test with its parameters, which all labels have in common."""
        return f"{self.test}{self.parameters}"

    @property
    def short(self) -> str:
        """The function's own name and its parameters, without file and class."""
        return f"{self.function.rpartition('::')[2]}{self.parameters}"

    @property
    def title(self) -> str:
        """The full name without file and class."""
        return f"{self.short}#{self.label}" if self.label else self.short


def split_name(fullname: str) -> EntryName:
    """Return the parts of an entry's full name. A ``#`` among the parameters does not begin a label."""
    path, mark, test = fullname.partition("::")
    if not mark:
        path, test = "", fullname
    function = re.split(r"[\[#]", test, maxsplit=1)[0]
    remainder = test[len(function) :]
    if not remainder.startswith("["):
        return EntryName(path, function, "", remainder[1:])
    inside, mark, label = remainder.rpartition("]#")
    if not mark or _closes_a_bracket(label):  # the last bracket is that of the parameters
        return EntryName(path, function, remainder)
    return EntryName(path, function, f"{inside}]", label)


def _closes_a_bracket(text: str) -> bool:
    """Return whether a text closes a bracket that it has not opened."""
    opened = 0
    for char in text:
        opened += (char == "[") - (char == "]")
        if opened < 0:
            return True
    return False


def entry_names(stored_name: str, name: str, label: str) -> tuple[str, str]:
    """Return an entry's full name and its name, from the item's name in stored runs and pytest's name for it.

    The full name identifies the entry among stored runs. In the name, the label belongs to the function, so that
    ``pytest-benchmark compare --group-by=func`` tells the entries of a test apart.
    """
    if not label:
        return stored_name, name
    function, mark, parameters = name.partition("[")
    return f"{stored_name}#{label}", f"{function}#{label}{mark}{parameters}"


def parse_label(nodeid: str, fullname: str) -> str:
    """Return an entry's label from its full name. It is empty if the entry has none.

    The file's path is not compared: a suite's test is stored under another path than pytest may have in the node id.
    """
    (_, mark, test), (_, _, stored_test) = nodeid.partition("::"), fullname.partition("::")
    return (stored_test.removeprefix(test) if mark else fullname.removeprefix(nodeid)).removeprefix("#")
