"""Measure the CPU of an array's write path, and its memory.

Objects of 16 MiB are sealed, coded, hashed and handed over at k=4, m=2. The children discard their content, so no disk
is measured. Process CPU time includes the threads of the children. The reference is the minimum that
any such array must do with the same bytes: AES-GCM once, and SHA-256 of the content.

Objects of 5 KiB go into six folders and are compared with plain puts into six folders, since most of the cost does not
depend on the size then. Some are put before, because the first files in new folders cost a file system several times as
much as later ones.

Tahoe-LAFS also needs any four of six nodes. Both send over the loopback, and only the client counts: this process, and
for Tahoe-LAFS also its gateway, which encrypts and codes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figure, alternating, children_cpu_s, measure_growth, median
from pytest_cloudbench import drivers, providers
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Entry,
    ErrorKind,
    ProviderSpec,
    Verb,
    chunks,
)
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.coding import reed_solomon
from pytest_cloudbench.raid.driver import RaidDriver, open_array
from pytest_cloudbench.services.command import CommandService, load_recipe
from pytest_cloudbench.workload.payload.contents import Literal

__all__ = ["measure"]

_SIZE_BYTES = 16 * MIB
_PUTS = 4
_BLOCKS = 5
_LARGE_BYTES = 1024 * MIB
_SMALL_BYTES = 5 * 1024
_SMALL_PUTS = 200
_FIRST_PUTS = 1000
_K, _M = 4, 2


class _Sink:
    """A child that reads contents, as an upload does, and discards them."""

    capabilities = Capabilities(None, frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE}))

    def versions(self) -> Mapping[str, str]:
        return {"sink": "1"}

    def put(self, path: str, content: Content) -> Entry:
        for _ in chunks(content):
            pass
        return Entry(path, content.size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        raise CloudError(ErrorKind.NOT_FOUND, "get", path)

    def stat(self, path: str) -> Entry:
        raise CloudError(ErrorKind.NOT_FOUND, "stat", path)

    def list(self, folder: str) -> Iterator[Entry]:
        return iter(())

    def delete(self, path: str) -> None:
        pass

    def mkdir(self, path: str) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def _array(children: Sequence[Any], scratch: str | None = None) -> Iterator[RaidDriver]:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        file = Path(folder, "array.toml")
        specs = ", ".join(f'"folder:/nowhere/{number}"' for number in range(_K + _M))
        file.write_text(f'k = {_K}\nm = {_M}\nkey = "array.key"\nchildren = [{specs}]\n', "utf-8")
        driver = RaidDriver(open_array(config.load(file), children))
        try:
            yield driver
        finally:
            driver.close()


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """Measure the write path over the reference, of the same over Tahoe-LAFS, and the memory for 1 GiB at once."""
    figures = []
    for name, codec, bound in (
        ("raid_put_isal", reed_solomon.Isal, 0.4), ("raid_put_portable", reed_solomon.Portable, 0.17),
    ):  # fmt: skip
        if name in names and codec.serves(_K, _M):
            figures.append(_write_path(name, codec, bound, max(_BLOCKS, runs)))
    if "raid_put_small" in names:
        figures.append(_small_objects(max(_BLOCKS, runs)))
    if "raid_over_tahoe" in names:
        figures += _over_tahoe(runs)
    if "raid_rss" in names:
        figures.append(_memory())
    return figures


def _write_path(name: str, codec: Any, bound: float, blocks: int) -> Figure:
    content = Literal(os.urandom(_SIZE_BYTES))
    before, reed_solomon.CODECS = reed_solomon.CODECS, (codec,)
    try:
        with _array([_Sink() for _ in range(_K + _M)]) as driver:
            rates = alternating(
                lambda: _mb_per_cpu_s(lambda: driver.put("/object", content)),
                lambda: _mb_per_cpu_s(lambda: _seal_and_hash(content.data)), blocks,
            )  # fmt: skip
            costs = driver.ledger.totals()["put"]
            growth = measure_growth("bytes", _SIZE_BYTES // 10, lambda size: _put_cpu_s(driver, size))
    finally:
        reed_solomon.CODECS = before
    ms = {f"{part}_ms": round(getattr(costs, f"{part}_ns") / costs.operations / 1e6, 2)
          for part in ("seal", "code", "hash", "metadata", "transfer")}  # fmt: skip
    absolute = {
        "put, MB / CPU-s": round(median(rates.ours), 1),
        "AES-GCM and SHA-256, MB / CPU-s": round(median(rates.reference), 1),
    }
    unit = "MB / CPU-s over AES-GCM and SHA-256 of the same bytes"
    details = {**rates.details(), **ms}
    return Figure(name, round(rates.ratio, 3), unit, bound, "at least", details, absolute, growth)


def _put_cpu_s(driver: RaidDriver, size_bytes: int) -> float:
    content, start_s = Literal(os.urandom(size_bytes)), time.process_time()
    driver.put("/object", content)
    return time.process_time() - start_s


def _small_objects(blocks: int) -> Figure:
    """Puts of small objects into an array of folders, over as many plain puts into folders."""
    content, numbers = Literal(os.urandom(_SMALL_BYTES)), itertools.count()
    with tempfile.TemporaryDirectory(dir=os.environ.get("CLOUDBENCH_SCRATCH")) as scratch:
        folders = [Path(scratch, f"{kind}-{number}") for kind in ("array", "plain") for number in range(_K + _M)]
        for folder in folders:
            folder.mkdir()
        children = [drivers.connect(ProviderSpec.parse(f"folder:{folder}")) for folder in folders]
        with _array(children[: _K + _M], scratch) as array:
            plain = children[_K + _M :]

            def cost(puts: Sequence[Callable[[str, Content], object]], count: int) -> float:
                start_ns = time.process_time_ns()
                for _ in range(count):
                    path = f"/objects/{next(numbers)}"  # an array's packages are in a folder as well
                    for put in puts:
                        put(path, content)
                return (time.process_time_ns() - start_ns) / 1e9

            cost([array.put, *(child.put for child in plain)], _FIRST_PUTS)
            rates = alternating(
                lambda: _SMALL_PUTS / cost([array.put], _SMALL_PUTS),
                lambda: _SMALL_PUTS / cost([child.put for child in plain], _SMALL_PUTS),
                blocks,
            )
            growth = measure_growth("puts", _SMALL_PUTS // 4, lambda count: cost([array.put], count))
    absolute = {
        "put of the array, per CPU-s": round(median(rates.ours)),
        "put into each of six folders, per CPU-s": round(median(rates.reference)),
    }
    unit = "puts of 5 KiB per CPU-second over six plain puts into folders"
    return Figure("raid_put_small", round(rates.ratio, 3), unit, 0.7, "at least", rates.details(), absolute, growth)


def _seal_and_hash(data: bytes) -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(bytes(32))
    for number in range(0, len(data), MIB):
        cipher.encrypt(number.to_bytes(12, "big"), data[number : number + MIB], None)
    hashlib.sha256(data).digest()


def _mb_per_cpu_s(put: Callable[[], object]) -> float:
    start_ns = time.process_time_ns()
    for _ in range(_PUTS):
        put()
    return _PUTS * _SIZE_BYTES / 1e6 / ((time.process_time_ns() - start_ns) / 1e9)


def _over_tahoe(runs: int) -> list[Figure]:
    """Compare with Tahoe-LAFS. Where it is not installed, print a line and return nothing."""
    grid = load_recipe("tahoe")
    if missing := grid.describe_missing():
        print(f"raid_over_tahoe is not measured: {missing}")
        return []
    ports = [f"{{port{number}}}" for number in range(2, 3 + _K + _M)]
    grid = replace(grid, command=("{python}", "{here}/tahoe.py", "tahoe", "{folder}", str(_K), "{port}", *ports))
    with tempfile.TemporaryDirectory() as folder, CommandService(grid) as service:
        tahoe: Any = drivers.connect(ProviderSpec.parse("tahoe"), service.start(), {})
        file = Path(folder, "array.toml")
        specs = ", ".join(f'"{child}"' for child in ["local:s3?driver=s3%2Bfast"] * (_K + _M))
        file.write_text(f"k = {_K}\nm = {_M}\nchildren = [{specs}]\n", "utf-8")
        with providers.opened(f"raid:{file}") as raid:
            rates = alternating(
                _rate(raid.put, lambda: 0.0), _rate(tahoe.put, lambda: children_cpu_s(_is_gateway)),
                max(_BLOCKS, runs),
            )  # fmt: skip
        tahoe.close()
    absolute = {
        "put of the array, MB / CPU-s": round(median(rates.ours), 1),
        "put of Tahoe-LAFS, MB / CPU-s": round(median(rates.reference), 1),
    }
    unit = "bytes per client CPU-second over Tahoe-LAFS"
    return [Figure("raid_over_tahoe", round(rates.ratio, 2), unit, 2.0, "at least", rates.details(), absolute)]


def _is_gateway(command: str) -> bool:
    return command.endswith("/gateway")


def _rate(put: Callable[[str, Content], object], more_cpu_s: Callable[[], float]) -> Callable[[], float]:
    """Return a function that measures MB per CPU-second of this process and of what ``more_cpu_s`` counts.

    All contents differ: Tahoe-LAFS sends no content twice.
    """
    numbers = itertools.count()

    def block() -> float:
        contents = [Literal(os.urandom(_SIZE_BYTES)) for _ in range(_PUTS)]
        began_s = time.process_time() + more_cpu_s()
        for content in contents:
            put(f"/object-{next(numbers)}", content)
        return _PUTS * _SIZE_BYTES / 1e6 / (time.process_time() + more_cpu_s() - began_s)

    return block


def _memory() -> Figure:
    """Measure the peak memory of a process that writes one large object into folders and reads it again."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("CLOUDBENCH_SCRATCH")) as folder:
        command = [sys.executable, "-m", "benchmarks.bench_raid", folder, str(_LARGE_BYTES)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    put_kib, get_kib = (int(word) for word in done.stdout.split())
    absolute = {"after the put, MiB": round(put_kib / 1024, 1), "after the get, MiB": round(get_kib / 1024, 1)}
    unit = "MiB, the most of a process that writes and reads 1 GiB"
    return Figure("raid_rss", round(max(put_kib, get_kib) / 1024, 1), unit, 150.0, "below", absolute=absolute)


def main(folder: str, size_bytes: int) -> None:
    """Write and read one object. Print the peak memory after each, in KiB."""
    from pytest_cloudbench.lab.sync.usage import rss_bytes
    from pytest_cloudbench.workload.payload import RandomContent

    def print_peak() -> None:
        # Not ru_maxrss: that is at least what the process had that started this one.
        print((rss_bytes([os.getpid()], peak=True) or 0) // 1024)

    file = Path(folder, "array.toml")
    for number in range(_K + _M):
        Path(folder, str(number)).mkdir()
    specs = ", ".join(f'"folder:{folder}/{number}"' for number in range(_K + _M))
    file.write_text(f'k = {_K}\nm = {_M}\nkey = "array.key"\nchildren = [{specs}]\n', "utf-8")
    content = RandomContent("raid", size_bytes)
    with providers.opened(f"raid:{file}") as driver:
        driver.put("/large", content)
        print_peak()
        offset = 0
        for piece in driver.get("/large"):
            if piece != content.read(offset, len(piece)):
                raise SystemExit(f"the object differs at {offset}")
            offset += len(piece)
        if offset != size_bytes:
            raise SystemExit(f"the object has {offset} bytes")
        print_peak()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
