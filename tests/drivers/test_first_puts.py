"""Simultaneous first puts into new folders, of which a server that a run starts must lose none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_cloudbench.model import CloudError
from pytest_cloudbench.services.command import load_recipe
from pytest_cloudbench.workload.payload.contents import Literal

from .real import connected, served

THREADS = 16
FOLDERS = ("", "/x", "/x/y")
"""The folders above a file, in turn."""


@pytest.mark.parametrize("rounds", [12, pytest.param(625, marks=pytest.mark.slow)])
# rclone's S3 server loses puts if the system keeps it waiting in the middle of one: see the comment in its recipe.
@pytest.mark.parametrize("name", [pytest.param("s3", marks=pytest.mark.truth), "webdav"])
def test_simultaneous_first_puts_all_succeed(name: str, rounds: int) -> None:
    """In each round all threads put into one new folder at the same moment. The long run has 10,000 puts."""
    target = load_recipe(name).target
    with served(name) as service, connected(service.endpoint, f"{name}:{target}") as driver:
        barrier = threading.Barrier(THREADS)

        def put(thread: int) -> list[CloudError]:
            errors = []
            for number in range(rounds):
                barrier.wait()
                try:
                    driver.put(f"/round-{number}{FOLDERS[number % 3]}/{thread}", Literal(b"1"))
                except CloudError as error:
                    errors.append(error)
            return errors

        with ThreadPoolExecutor(THREADS) as pool:
            assert [error for errors in pool.map(put, range(THREADS)) for error in errors] == []
        listed = {entry.path for entry in driver.list("/") if not entry.is_folder}
    assert len(listed) == rounds * THREADS
