"""The numbers that MEGA answers instead of a result when a command fails.

They are listed in the header of MEGA's own SDK (include/mega/types.h, read in April 2026).
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The error numbers that the emulator uses."""

    EARGS = -2
    EAGAIN = -3
    ERATELIMIT = -4
    EFAILED = -5
    ETOOMANY = -6
    ERANGE = -7
    EEXPIRED = -8
    ENOENT = -9
    ECIRCULAR = -10
    EACCESS = -11
    ESID = -15
    EOVERQUOTA = -17


class Failure(Exception):
    """A command failed and is answered with the number ``code``."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code
