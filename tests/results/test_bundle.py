"""Archives of stored runs that were changed by somebody or by a broken download."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.commands import cli
from tests.results.stored_runs import store_series


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def run(storage: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str, status: int = 0) -> tuple[str, str]:
        assert cli.main([*argv, "--storage", str(storage)]) == status, capfd.readouterr()
        output = capfd.readouterr()
        return output.out, output.err

    return run


def flip_bytes(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(byte ^ 0x55 for byte in data[start:end]) + data[end:]


def archive_of(content: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "x", count: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number in range(count):
            archive.writestr(f"a/{number:04}_{name}.json", content)
    return file.getvalue()


RUN = json.dumps(list(range(2000))).encode()
DAMAGED = {
    "LZMA, damaged": flip_bytes(archive_of(RUN, zipfile.ZIP_LZMA), 80, 140),
    "LZMA": archive_of(RUN, zipfile.ZIP_LZMA),
    "bzip2, damaged": flip_bytes(archive_of(RUN, zipfile.ZIP_BZIP2), 80, 140),
    "deflated, damaged": flip_bytes(archive_of(RUN), 80, 140),
    "stored, damaged": flip_bytes(archive_of(RUN, zipfile.ZIP_STORED), 80, 140),
    "a name of no UTF-8": archive_of(RUN, name="\u00e9").replace("\u00e9".encode(), b"\xff\xfe"),
    "the end is gone": archive_of(RUN)[:-30],
    "the beginning is gone": archive_of(RUN)[100:],
    "its list, damaged": flip_bytes(archive_of(RUN), len(archive_of(RUN)) - 60, len(archive_of(RUN)) - 40),
    "a bomb": archive_of(b"[" + b" " * (8 << 20) + b"]", count=4),
    "empty": b"",
    "a run": RUN,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_archive_is_refused_in_one_line_and_changes_nothing(
    storage: Path, tmp_path: Path, run: Any, content: bytes
) -> None:
    bundle = tmp_path / "runs.zip"
    bundle.write_bytes(content)
    out, err = run("baseline", "import", str(bundle), status=1)
    assert out == ""
    assert err.startswith(f"cloudbench: {bundle}: ")
    assert err.count("\n") == 1
    assert list(storage.iterdir()) == []


def test_any_flipped_byte_of_an_archive_is_no_traceback(storage: Path, tmp_path: Path, capfd: Any) -> None:
    store_series(storage, [0.1, 0.2])
    bundle, other_storage = tmp_path / "runs.zip", str(tmp_path / "there")
    assert cli.main(["baseline", "export", str(bundle), "--storage", str(storage)]) == 0
    data = bundle.read_bytes()
    statuses = set()
    for offset in [*range(0, len(data), 97), *range(len(data) - 160, len(data))]:
        bundle.write_bytes(flip_bytes(data, offset, offset + 1))
        statuses.add(cli.main(["baseline", "import", str(bundle), "--storage", other_storage]))
        assert capfd.readouterr().err.count("\n") <= 2
    assert statuses == {0, 1}


def test_import_refuses_paths_other_than_files(storage: Path, tmp_path: Path, run: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", tmp_path, tmp_path / "missing", "/dev/zero"):
        _, err = run("baseline", "import", str(name), status=4)
        assert err.count("\n") == 1


def test_files_of_one_name_in_an_archive_are_all_taken_in(storage: Path, tmp_path: Path, run: Any) -> None:
    bundle = tmp_path / "twice.zip"
    with zipfile.ZipFile(bundle, "w") as archive, warnings.catch_warnings(action="ignore"):
        for content in ("[1]", "[2]", "[1]"):
            archive.writestr("a/0001_x.json", content)
        archive.writestr("a/0002_" + "\u00e9" * 150 + ".json", "[3]")
    out, err = run("baseline", "import", str(bundle), status=1)
    assert "2 files are new, 1 was there already" in out
    assert "not taken in: a/0002_" in err
    assert sorted(path.read_text() for path in (storage / "a").iterdir()) == ["[1]", "[2]"]
