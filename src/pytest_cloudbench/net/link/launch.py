"""Run a command inside a namespace of a link: ``launch.py HOLDER FD USER IDS MARK COMMAND...``.

It is run by its path and cannot import the package. It replaces itself with the command, so signals, output and the
exit status are the command's own.

HOLDER is the process that keeps the namespaces open, and FD is its descriptor of the network namespace. USER is
``user`` to enter its user namespace too. IDS is the ``UID:GID`` to run the command as (under sudo), or ``-``. MARK is
put into the environment so that a later run can find leftover processes.
"""

from __future__ import annotations

import ctypes
import os
import sys

_NEWUSER, _NEWNET = 0x10000000, 0x40000000


def _enter_namespace(path: str, kind: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
    if libc.setns(descriptor, kind):
        raise OSError(ctypes.get_errno(), f"cannot enter {path}: {os.strerror(ctypes.get_errno())}")
    os.close(descriptor)


def _read_environment() -> dict[bytes, bytes]:
    """Return the environment meant for the command, read from the sudo process because sudo clears it."""
    with open(f"/proc/{os.getppid()}/environ", "rb") as file:
        return dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)


def main(argv: list[str]) -> int:
    """Enter the namespaces and exec the command. Returns only on failure: 125, with a line on stderr."""
    holder, descriptor, user, ids, mark, *command = argv
    try:
        environment = dict(os.environb) if ids == "-" else _read_environment()
        network = f"/proc/{holder}/fd/{descriptor}"
        if user == "user":  # open it first, because /proc of the holder is not readable from inside
            fd = os.open(network, os.O_RDONLY)
            _enter_namespace(f"/proc/{holder}/ns/user", _NEWUSER)
            _enter_namespace(f"/proc/self/fd/{fd}", _NEWNET)
            os.close(fd)
        else:
            _enter_namespace(network, _NEWNET)
        if ids != "-":
            uid, gid = map(int, ids.split(":"))
            os.initgroups(os.environ["SUDO_USER"], gid)
            os.setgid(gid)
            os.setuid(uid)
        environment[b"CLOUDBENCH_LINK"] = mark.encode()
        os.execvpe(command[0], command, environment)
    except (OSError, LookupError, ValueError) as error:
        sys.stderr.write(f"cloudbench link: {' '.join(command[:1])}: {error}\n")
    return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
