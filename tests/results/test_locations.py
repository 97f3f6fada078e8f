"""The last stored location of a provider, by its spec or by the name of its server, as seen from this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.results import rows
from pytest_cloudbench.results.locations import LOCATIONS, StoredLocations

NAME = "files.fjord.example"


def location(name: str, *names: str, date: str = "2026-11-27") -> dict[str, Any]:
    return {"place": name, "names": [*names], "date": date}


def test_the_last_location_of_a_provider_or_of_its_server_is_found(tmp_path: Path) -> None:
    StoredLocations(tmp_path).add(location("Oslo", NAME))
    stored = StoredLocations(tmp_path)
    assert stored.find("webdav:files", NAME) == location("Oslo", NAME)
    stored.add(location("Rome", "192.0.2.1"), "webdav:files")
    for reader in (stored, StoredLocations(tmp_path)):
        assert reader.find("webdav:files", NAME)["place"] == "Rome"
        assert reader.find("webdav:other", NAME)["place"] == "Oslo"
        assert reader.find("webdav:other", "files.fjord.test") == {}


def test_a_location_that_was_looked_up_is_not_stored_again(tmp_path: Path) -> None:
    stored = StoredLocations(tmp_path)
    stored.add(location("Oslo", NAME))
    stored.add(stored.find("webdav:files", NAME), "webdav:files", NAME)
    assert len((tmp_path / LOCATIONS).read_text("utf-8").splitlines()) == 1


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost"])
def test_a_name_of_loopback_says_nothing_of_another_provider(tmp_path: Path, name: str) -> None:
    stored = StoredLocations(tmp_path)
    stored.add(location("Oslo", name), "emulated:ideal")
    assert stored.find("webdav:a-tunnel", name) == {}
    assert stored.find("emulated:ideal", name)["place"] == "Oslo"


def test_foreign_and_malformed_locations_are_left_out(tmp_path: Path) -> None:
    entries = [{**location("Rome", NAME), "provider": "box", "key": "another"}, {"names": 7}, [], "text"]
    text = "\n".join([*map(json.dumps, entries), '{"torn'])
    (tmp_path / LOCATIONS).write_text(text, "utf-8")
    assert StoredLocations(tmp_path).find("box", NAME) == {}


def test_without_a_folder_nothing_is_kept() -> None:
    stored = StoredLocations()
    assert stored.add(location("Oslo", NAME), "box") is None
    assert stored.find("box", NAME) == {}


def test_the_last_rows_of_a_large_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        rows.add_row(tmp_path / "rows.jsonl", {"number": number})
    monkeypatch.setattr(rows, "_MOST_BYTES", 50)
    numbers = [row["number"] for row in rows.read_rows(tmp_path / "rows.jsonl")]
    assert numbers[-1] == 99
    assert numbers == list(range(numbers[0], 100))
