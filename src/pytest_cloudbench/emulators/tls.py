"""The certificate of an emulator, signed by its own CA, and the token of its control socket.

Both are files in a folder that only this user can enter, which is made at the start and removed with the process. The
private key is removed as soon as it is loaded. The next process removes what a killed process left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence

from pytest_cloudbench.results.owner import make_private_folder

_KEY = "server.pem"


def make_certificate(names: Sequence[str]) -> str:
    """Make ``ca.pem`` and ``server.pem`` (key and chain, for these names) in a new folder, and return its path.

    The folder has mode 0700, and the caller removes it. Folders of killed processes are removed first.
    """
    import trustme

    folder = make_private_folder("cloudbench-tls-")
    authority = trustme.CA(organization_name="pytest-cloudbench emulator", key_type=trustme.KeyType.ECDSA)
    server = authority.issue_cert(*names, key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_and_cert_chain_pem.write_to_path(folder / _KEY)
    return str(folder)


def forget_key(folder: str) -> None:
    """Remove the private key, which is needed only until it is loaded."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, _KEY))


def make_control_token(folder: str) -> tuple[str, str]:
    """Write a new token to a file that only its owner can read. Return the token and the path of the file."""
    token, path = secrets.token_urlsafe(32), os.path.join(folder, "control.token")
    _create_private_file(path, token.encode())
    return token, path


def make_file_keeper(folder: str) -> Callable[[], None]:
    """Return a function that protects the folder's files from clean-ups of temporary files, if it is called often.

    Clean-ups go by age or by name. Each call gives the files a new date and rewrites missing ones, since clients may
    read the certificate at any time.
    """
    contents = {}
    for name in os.listdir(folder):
        with open(path := os.path.join(folder, name), "rb") as file:
            contents[path] = file.read()

    def keep() -> None:
        with contextlib.suppress(OSError):  # such as a full disk: the next call may succeed
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            if os.name == "posix" and os.lstat(folder).st_uid != os.geteuid():
                return  # another user has made a folder of this name meanwhile
            for path, content in contents.items():
                try:
                    os.utime(path)
                except FileNotFoundError:
                    _create_private_file(path, content)

    return keep


def _create_private_file(path: str, content: bytes) -> None:
    """Create a file that only its owner can read. Nobody sees it empty: it gets its name once it is written."""
    unfinished = f"{path}.{secrets.token_hex(4)}"
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    os.replace(unfinished, path)
