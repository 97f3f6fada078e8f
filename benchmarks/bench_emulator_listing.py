"""CPU time of an emulator's process for each listed entry of a large folder, and its memory for large content.

A folder of 50,000 and one of 5,000 are listed in turns, in the largest pages of each API, by a client on one
connection. The ratio of the two is the growth of a page's cost with its folder. Folders of up to a million are listed
once.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from benchmarks.harness import MIB, ROOT, Figure, alternating, environment, measure_growth, median, python
from pytest_cloudbench.emulators import start_emulator

__all__ = ["measure"]

_SMALL, _LARGE = 5_000, 50_000
_BLOCKS = 6
_CONTENT_BYTES = 2 * 1024 * MIB

Page = tuple[list[Any], str]
Ask = Callable[..., dict[str, Any]]


def _dropbox_page(ask: Ask, folder: str, mark: str) -> Page:
    url = "/2/files/list_folder"
    page = ask(f"{url}/continue", {"cursor": mark}) if mark else ask(url, {"path": folder, "limit": 2000})
    return page["entries"], page["cursor"] if page["has_more"] else ""


def _box_page(ask: Ask, folder: str, mark: str) -> Page:
    page = ask(f"/2.0/folders/{folder}/items?limit=1000&usemarker=true{mark and f'&marker={mark}'}")
    return page["entries"], page.get("next_marker", "")


def _gdrive_page(ask: Ask, folder: str, mark: str) -> Page:
    query = quote(f"'{folder}' in parents and trashed = false")
    page = ask(f"/drive/v3/files?q={query}&pageSize=1000{mark and f'&pageToken={quote(mark)}'}")
    return page["files"], page.get("nextPageToken", "")


def _onedrive_page(ask: Ask, folder: str, mark: str) -> Page:
    page = ask(mark or f"/v1.0/me/drive/items/{folder}/children?$top=1000")
    following = urlsplit(page.get("@odata.nextLink", ""))
    return page["value"], f"{following.path}?{following.query}" if following.path else ""


_PAGES: Mapping[str, tuple[str, Callable[[Ask, str, str], Page]]] = {
    "emulator_listing_growth": ("dropbox", _dropbox_page),
    "emulator_listing_growth_box": ("box", _box_page),
    "emulator_listing_growth_gdrive": ("gdrive", _gdrive_page),
    "emulator_listing_growth_onedrive": ("onedrive", _onedrive_page),
}
"""Figure to the API, and what asks for one page of a folder."""


@contextmanager
def _connected(port: int, ca_file: str) -> Iterator[HTTPSConnection]:
    connection = HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cafile=ca_file))
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _listed(api: str, count: int, ask_page: Callable[[Ask, str, str], Page]) -> Iterator[Callable[[], float]]:
    """Yield what lists a folder of this many files once, and returns the server's CPU per entry in microseconds."""
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = python("-m", "benchmarks.filled_emulator", api, str(count))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment(**path), stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        clock = (~process.pid << 3) | 2  # clock_getcpuclockid(3): the whole process's CPU clock
        port = urlsplit(next(iter(ready["urls"].values()))).port
        with _connected(port or 0, ready["ca_file"]) as connection:

            def ask(url: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
                headers = {"Authorization": f"Bearer {ready['credentials']['access_token']}"}
                if body is not None:
                    headers["Content-Type"] = "application/json"
                connection.request("POST" if body else "GET", url, json.dumps(body) if body else None, headers)
                answer = connection.getresponse()
                value: dict[str, Any] = json.loads(answer.read())
                if answer.status != 200:
                    raise RuntimeError(f"unexpected answer: {value}")
                return value

            def list_folder() -> float:
                entries, mark, before_s = 0, "", time.clock_gettime(clock)
                while entries == 0 or mark:
                    page, mark = ask_page(ask, ready["folder"], mark)
                    entries += len(page)
                if entries != count:
                    raise RuntimeError(f"{entries} of {count} entries were listed")
                return (time.clock_gettime(clock) - before_s) / count * 1e6

            yield list_folder
        process.stdin.close()


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``emulator_listing_growth`` of each API, and ``emulator_memory``."""
    figures = [_measure_listing(name, runs) for name in names if name in _PAGES]
    return [*figures, _measure_memory()] if "emulator_memory" in names else figures


def _measure_listing(name: str, runs: int) -> Figure:
    api, ask_page = _PAGES[name]
    with _listed(api, _LARGE, ask_page) as list_large, _listed(api, _SMALL, ask_page) as list_small:
        blocks = alternating(list_large, list_small, _BLOCKS * runs)

    def list_once(count: int) -> float:
        with _listed(api, count, ask_page) as list_folder:
            return list_folder() * count / 1e6

    growth = measure_growth("entries", 10_000, list_once)
    absolute = {f"us CPU / entry of {_LARGE:,}": median(blocks.ours),
                f"us CPU / entry of {_SMALL:,}": median(blocks.reference)}  # fmt: skip
    return Figure(name, blocks.ratio, "CPU per entry of 50,000 / of 5,000", 1.2,
                  details=blocks.details(), absolute=absolute, growth=growth)  # fmt: skip


def _measure_memory() -> Figure:
    """The most memory that Drive's emulator has while 2 GiB go up and down."""
    with start_emulator("gdrive-ideal") as emulator:
        endpoint = emulator.endpoint
        with _connected(urlsplit(endpoint.url).port or 0, endpoint.ca_file) as connection:
            headers = {"Authorization": f"Bearer {endpoint.credentials['access_token']}"}
            block = os.urandom(MIB)
            body = (block for _ in range(_CONTENT_BYTES // MIB))
            url = "/upload/drive/v3/files?uploadType=media"
            connection.request("POST", url, body, {**headers, "Content-Length": str(_CONTENT_BYTES)})
            file_id = json.loads(connection.getresponse().read())["id"]
            connection.request("GET", f"/drive/v3/files/{file_id}?alt=media", headers=headers)
            answer, received_bytes = connection.getresponse(), 0
            while piece := answer.read(MIB):
                received_bytes += len(piece)
            if received_bytes != _CONTENT_BYTES:
                raise RuntimeError(f"{received_bytes} of {_CONTENT_BYTES} bytes came back")
        status = Path("/proc", str(emulator.child.pid), "status").read_text()
        peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return Figure("emulator_memory", round(peak_mib, 1), "MiB for 2 GiB of content", 200.0)
