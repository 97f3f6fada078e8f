"""An emulator whose account has one folder with many files: ``python -m benchmarks.filled_emulator API COUNT``.

Uploads would take minutes, so the files are put into the account's state. The emulator ends when its input does. Its
first line is ``cloudbench emulate``'s, with the id or path of the folder in ``folder``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from pytest_cloudbench.emulators import server
from pytest_cloudbench.emulators.blob import hash_blob
from pytest_cloudbench.emulators.dropbox.blocks import BlockBlob
from pytest_cloudbench.emulators.gdrive.files import make_file

__all__ = ["main"]

_PROFILES = {"dropbox": "ideal"}
_BLOB = hash_blob(b"x", hashlib.sha1(usedforsecurity=False))


def _add_to_dropbox(state: Any, names: Iterator[str], now_s: float) -> str:
    content = BlockBlob.from_content(b"x")
    for name in names:
        state.tree.put(f"/d/{name}", content, now_s)
    return "/d"


def _add_to_box(state: Any, names: Iterator[str], now_s: float) -> str:
    folder = state.add_folder(state.store.root, "d", now_s)
    for name in names:
        state.add_file(folder, name, _BLOB, now_s, now_s, now_s)
    return str(folder.id)


def _add_to_gdrive(state: Any, names: Iterator[str], now_s: float) -> str:
    folder = make_file(state, {"name": "d", "mimeType": "application/vnd.google-apps.folder"}, None, "", now_s)
    for name in names:
        make_file(state, {"name": name, "parents": [folder.id]}, _BLOB, "application/octet-stream", now_s)
    return folder.id


def _add_to_onedrive(state: Any, names: Iterator[str], now_s: float) -> str:
    folder = state.tree.add_folder(state.tree.root, "d", now_s)
    for name in names:
        state.tree.add_file(folder, name, _BLOB, now_s)
    return str(folder.id)


_ADD: dict[str, Callable[[Any, Iterator[str], float], str]] = {
    "dropbox": _add_to_dropbox,
    "box": _add_to_box,
    "gdrive": _add_to_gdrive,
    "onedrive": _add_to_onedrive,
}


def main(api: str, count: int) -> int:
    """Serve until the input ends, and return the exit status."""
    folder = ""

    class FilledEmulator(server.Emulator):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            nonlocal folder
            super().__init__(*arguments, **options)
            names = (f"file-{number * 7919 % count:07}.bin" for number in range(count))  # no order of arrival
            folder = _ADD[api](self.skin.state, names, time.time() - 10)  # type: ignore[attr-defined]  # every skin's

    class FirstLine(io.TextIOBase):
        def write(self, text: str) -> int:
            with contextlib.suppress(ValueError):
                text = json.dumps({**json.loads(text), "folder": folder})
            return sys.__stdout__.write(text) if sys.__stdout__ else 0

        def flush(self) -> None:
            if sys.__stdout__:
                sys.__stdout__.flush()

    server.Emulator = FilledEmulator  # type: ignore[misc]  # what the process serves
    with contextlib.redirect_stdout(FirstLine()):
        return server.main([api, "--profile", _PROFILES.get(api, f"{api}-ideal"), "--lifeline"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
