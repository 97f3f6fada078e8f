"""Files of arguments: what ``@FILE`` on pytest's command line stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


def expand_argument_files(args: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield the arguments of a command line given in ``folder``, in place of ``@FILE`` those in the file, one a line.

    A file that cannot be read stays an argument, because pytest itself reports it.
    """
    for arg in args:
        path = folder / arg[1:]
        if arg.startswith("@") and path.is_file():
            yield from expand_argument_files(path.read_text(errors="replace").splitlines(), folder)
        else:
            yield arg
