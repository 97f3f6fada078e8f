"""Does a driver do what it declares? There is one test for each thing that experiments and other suites rely on.

Tests of what the driver does not declare are skipped, with a reason that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from itertools import islice
from math import inf
from operator import xor
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import (
    DIGESTS,
    KIB,
    MIB,
    CloudError,
    Conflict,
    Counting,
    Driver,
    Entry,
    ErrorKind,
    LiteralContent,
    Parted,
    ProviderSpec,
    RandomContent,
    SharesLinks,
    SpecError,
    Stranger,
    Verb,
    content_difference,
    wait_for,
)

if TYPE_CHECKING:
    from pytest_cloudbench import Sandbox

needs = pytest.mark.needs

LARGEST_BYTES = {"quick": 8 * MIB, "paper": inf}
"""Larger bounds of one request are not exceeded on purpose, because traffic of an account may cost money."""

LINK_S, LINK_POLL_S = 60.0, 0.5
"""The longest time that a service may take to open a new link, or to close a revoked one, and how often it is tried."""

LISTED = {"quick": 25, "paper": 1_100}
"""How many files a long listing has. Services give up to 1,000 in one answer."""

MAX_LISTED = 10_000
"""The most entries that a test reads of a listing of the root, because an account may hold millions."""


def independent_digest(algorithm: str, data: bytes) -> str:
    """Return a digest by code that is independent of the package's own, so that a mistake in either shows."""
    if algorithm == "quickxorhash":
        ring = (len(data) << 96) % (1 << 160)
        for position in range(160):
            row = reduce(xor, data[position::160], 0)
            ring ^= (row << 11 * position % 160) % (1 << 160) ^ row >> (160 - 11 * position % 160)
        return ring.to_bytes(20, "little").hex()
    if algorithm != "sha256-4mib-blocks":
        return hashlib.new(algorithm, data).hexdigest()
    blocks = [data[start : start + 4 * MIB] for start in range(0, len(data), 4 * MIB)]
    return hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()


def require_refusal(kind: ErrorKind, action: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    return caught.value


def read_content(driver: Any, path: str) -> bytes:
    return b"".join(driver.get(path))


def files_below(driver: Any, folder: str) -> list[Entry]:
    return [entry for entry in driver.list(folder) if not entry.is_folder]


# --- the declarations of the driver ---


def test_driver_has_the_interface_and_names_its_versions(sandbox: Sandbox) -> None:
    driver = sandbox.provider.driver
    assert isinstance(driver, Driver)
    versions = driver.versions()
    assert versions
    assert all(name and text for name, text in versions.items())


def test_capabilities_make_sense_together(sandbox: Sandbox) -> None:
    driver: Any = sandbox.provider.driver
    declared = driver.capabilities
    assert declared.digest in {None, *DIGESTS}
    assert {Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE} <= declared.verbs
    for name, verb in (("copies_folders", Verb.COPY), ("moves_folders", Verb.MOVE), ("server_side_copy", Verb.COPY)):
        assert verb in declared.verbs or not getattr(declared, name), f"{name} is declared without {verb.value}"
    for conflict, verb in (
        (Conflict.COPY_ON_EXISTING, Verb.COPY),
        (Conflict.MOVE_ON_EXISTING, Verb.MOVE),
        (Conflict.SHARE_AGAIN, Verb.SHARE),
    ):
        assert verb in declared.verbs or conflict not in declared.conflicts, f"{conflict} without {verb.value}"
    assert (Verb.SHARE in declared.verbs) == (Verb.REVOKE in declared.verbs)
    assert declared.requests.keys() <= declared.verbs
    assert all(isinstance(number, int) and number >= 0 for number in declared.requests.values())
    if isinstance(driver, Parted):
        assert driver.multipart_bytes == declared.max_request_bytes, (
            "uploads are split at a different size from the declared one"
        )


def test_unknown_parameter_is_refused(sandbox: Sandbox) -> None:
    spec = ProviderSpec.parse(sandbox.provider.spec)
    target = spec.target if sandbox.provider.endpoint is None else ""  # the name of a service is not a driver's target
    with pytest.raises(SpecError, match="colour"):
        type(sandbox.provider.driver).connect(replace(spec, target=target, params={"colour": "red"}), None, {})


def test_a_verb_sends_as_many_requests_as_are_declared(sandbox: Sandbox, top: str) -> None:
    driver: Any = sandbox.provider.driver
    is_counting = isinstance(driver, Counting)
    if not is_counting:
        pytest.skip("not declared: how many requests it has sent")
    actions: dict[Verb, Callable[[], object]] = {
        Verb.PUT: lambda: driver.put(f"{top}/a", LiteralContent(b"1")),
        Verb.GET: lambda: list(driver.get(f"{top}/a")),
        Verb.STAT: lambda: driver.stat(f"{top}/a"),
        Verb.LIST: lambda: list(driver.list(top)),
        Verb.DELETE: lambda: driver.delete(f"{top}/a"),
    }
    for verb, action in actions.items():
        before = driver.requests()
        action()
        assert driver.requests() - before >= driver.capabilities.requests.get(verb, 0), verb


@needs("max_request_bytes")
def test_a_larger_upload_takes_more_requests(sandbox: Sandbox, driver: Any, top: str, grid: str) -> None:
    bound = driver.capabilities.max_request_bytes
    is_counting = isinstance(sandbox.provider.driver, Counting)  # isinstance ignores the fixture's ``__getattr__``
    if not is_counting:
        pytest.skip("not declared: how many requests it has sent")
    if bound > LARGEST_BYTES[grid]:
        pytest.skip(f"left to --grid paper: an upload of more than {bound} bytes")
    request_counts: list[int] = []
    for size_bytes in (1, 1, bound + 1):  # the first upload may also look up the folder
        before = driver.requests()
        assert driver.put(f"{top}/{len(request_counts)}", RandomContent("larger", size_bytes)).size_bytes == size_bytes
        request_counts.append(driver.requests() - before)
    assert request_counts[2] > request_counts[1], (
        f"{bound + 1} bytes took {request_counts[2]} requests, and one byte {request_counts[1]}"
    )


# --- files ---


@pytest.mark.parametrize("size_bytes", [0, 1, 5 * KIB, 4 * MIB, 4 * MIB + 1])
def test_round_trip(driver: Any, top: str, size_bytes: int) -> None:
    data = RandomContent("round trip", size_bytes).read(0, size_bytes)
    path = f"{top}/file.bin"
    put = driver.put(path, LiteralContent(data))
    stat = driver.stat(path)
    assert not content_difference(read_content(driver, path), data)
    assert (put.path, put.size_bytes, put.is_folder) == (path, size_bytes, False)
    assert (stat.path, stat.size_bytes, stat.is_folder, stat.digest) == (path, size_bytes, False, put.digest)


@needs("digest")
@pytest.mark.parametrize("size_bytes", [0, 1, 4 * MIB, 8 * MIB + 3])
def test_digest_is_of_the_declared_algorithm(driver: Any, top: str, size_bytes: int) -> None:
    data = RandomContent("digest", size_bytes).read(0, size_bytes)
    algorithm = driver.capabilities.digest_of(size_bytes)
    expected = algorithm and independent_digest(algorithm, data)
    assert driver.put(f"{top}/a", LiteralContent(data)).digest == expected
    assert driver.stat(f"{top}/a").digest == expected
    assert [entry.digest for entry in driver.list(top)] == [expected]


@needs("no digest")
def test_no_digest_is_given(driver: Any, top: str) -> None:
    entry = driver.put(f"{top}/a", LiteralContent(b"1"))
    assert [listed.digest for listed in (entry, driver.stat(f"{top}/a"), *driver.list(top))] == [None] * 3


@needs("overwrites")
def test_overwrite_replaces_content(driver: Any, top: str) -> None:
    for data in (b"the first and longer one", b"second"):
        driver.put(f"{top}/a", LiteralContent(data))
        assert read_content(driver, f"{top}/a") == data
    assert driver.stat(f"{top}/a").size_bytes == 6
    assert [entry.size_bytes for entry in driver.list(top)] == [6]


@needs("revisions", "overwrites")
def test_each_overwrite_has_a_revision_of_its_own(driver: Any, top: str) -> None:
    revisions = []
    for data in (b"1", b"2", b"1"):
        revisions.append(driver.put(f"{top}/a", LiteralContent(data)).revision)
        assert driver.stat(f"{top}/a").revision == revisions[-1]
        assert [entry.revision for entry in driver.list(top)] == revisions[-1:]
    assert None not in revisions
    assert len(set(revisions)) == 3


@needs("ranges")
@pytest.mark.parametrize("offset", [1, 1023, 1024, 70_000, 99_999])
def test_get_from_an_offset(driver: Any, top: str, offset: int) -> None:
    data = RandomContent("range", 100_000).read(0, 100_000)
    driver.put(f"{top}/a", LiteralContent(data))
    assert not content_difference(b"".join(driver.get(f"{top}/a", offset)), data[offset:])


@needs("streams")
def test_get_gives_pieces_and_can_be_left(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", RandomContent("pieces", 3 * MIB))
    pieces: Any = driver.get(f"{top}/a")
    first = len(next(pieces))
    assert 0 < first < 3 * MIB, (
        f"the first piece has {first} of {3 * MIB} bytes: declare streams=False, or give it sooner"
    )
    pieces.close()  # drivers return generators
    assert driver.stat(f"{top}/a").size_bytes == 3 * MIB


# --- names ---


@pytest.mark.parametrize("name", ["ä ö ß.bin", "日本語.txt", "🌧 cloud", "a'b\"c", "100%25 & +#?.x", ".hidden"])
def test_names(driver: Any, top: str, name: str) -> None:
    if problem := driver.capabilities.names.problem(name):
        pytest.skip(f"not declared: {problem}")
    path = f"{top}/{name}"
    driver.put(path, LiteralContent(b"x"))
    assert driver.stat(path).path == path
    assert read_content(driver, path) == b"x"
    assert [entry.path for entry in driver.list(top)] == [path]
    driver.delete(path)
    assert list(driver.list(top)) == []


@pytest.mark.parametrize("character", ["n", "ö", "日"])
def test_longest_name(driver: Any, top: str, character: str) -> None:
    rules = driver.capabilities.names
    bounds = [rules.max_chars, rules.max_bytes and rules.max_bytes // len(character.encode())]
    declared = [bound for bound in bounds if bound is not None]
    if not declared:
        pytest.skip("not declared: names.max_chars, names.max_bytes")
    path = f"{top}/{character * min(declared)}"
    driver.put(path, LiteralContent(b"x"))
    assert [entry.path for entry in driver.list(top)] == [path]
    require_refusal(ErrorKind.INVALID, lambda: driver.put(path + character, LiteralContent(b"x")))


@needs("names.refused")
def test_refused_characters_are_invalid(driver: Any, top: str) -> None:
    for character in driver.capabilities.names.refused:
        require_refusal(ErrorKind.INVALID, partial(driver.put, f"{top}/a{character}b", LiteralContent(b"x")))
    assert list(driver.list(top)) == []


@needs("names.case_sensitive")
def test_case_is_kept_apart(driver: Any, top: str) -> None:
    driver.put(f"{top}/A", LiteralContent(b"1"))
    driver.put(f"{top}/a", LiteralContent(b"2"))
    assert {entry.path for entry in driver.list(top)} == {f"{top}/A", f"{top}/a"}


@needs("no names.case_sensitive", "overwrites")
def test_case_is_one(driver: Any, top: str) -> None:
    driver.put(f"{top}/A", LiteralContent(b"1"))
    driver.put(f"{top}/a", LiteralContent(b"2"))
    assert len(list(driver.list(top.upper()))) == 1


@pytest.mark.parametrize("path", ["", "relative", "relative/a"])
def test_malformed_paths_are_invalid(driver: Any, path: str) -> None:
    require_refusal(ErrorKind.INVALID, lambda: driver.put(path, LiteralContent(b"1")))


# --- folders ---


@needs("folders")
def test_list_is_recursive_and_without_the_folder_itself(driver: Any, top: str) -> None:
    driver.put(f"{top}/deep/er/a", LiteralContent(b"12"))
    driver.put(f"{top}/b", LiteralContent(b"123"))
    driver.mkdir(f"{top}/empty")
    entries = {(entry.path, entry.size_bytes, entry.is_folder) for entry in driver.list(top)}
    assert entries == {
        (f"{top}/deep", 0, True),
        (f"{top}/deep/er", 0, True),
        (f"{top}/deep/er/a", 2, False),
        (f"{top}/b", 3, False),
        (f"{top}/empty", 0, True),
    }


def test_list_omits_folder_removed_meanwhile(driver: Any, top: str) -> None:
    remaining, gone = {f"{top}/a", f"{top}/y/b"}, {f"{top}/x/c", f"{top}/x/z/d"}
    for path in remaining | gone:
        driver.put(path, LiteralContent(b"1"))
    listed_paths = set()
    is_there = True
    for entry in driver.list(top):
        if is_there and entry.path.startswith(f"{top}/x"):
            driver.delete(f"{top}/x")
            is_there = False
        if not entry.is_folder:
            listed_paths.add(entry.path)
    assert remaining <= listed_paths <= remaining | gone


@needs("no folders")
def test_list_of_flat_keys_yields_only_files(driver: Any, top: str) -> None:
    folder = f"{top}/folder"
    driver.put(f"{folder}/deep/er/a", LiteralContent(b"12"))
    driver.put(f"{folder}/b", LiteralContent(b"123"))
    driver.put(f"{folder}-not", LiteralContent(b"beside"))  # has the same prefix, but is not below the folder
    driver.mkdir(f"{folder}/empty")
    entries = {(entry.path, entry.size_bytes, entry.is_folder) for entry in driver.list(folder)}
    assert entries == {(f"{folder}/deep/er/a", 2, False), (f"{folder}/b", 3, False)}


def test_every_page_of_a_listing_is_read(driver: Any, top: str, grid: str) -> None:
    paths = [f"{top}/many/{number:04d}" for number in range(LISTED[grid])]
    for path in paths:
        driver.put(path, LiteralContent(b"1"))
    assert sorted(entry.path for entry in files_below(driver, f"{top}/many")) == paths


def test_the_root_is_listed(driver: Any, top: str) -> None:
    driver.put(f"{top}/b", LiteralContent(b"123"))
    listed = 0
    for entry in islice(driver.list("/"), MAX_LISTED):  # folders of other tests come and go meanwhile
        listed += 1
        if entry.path == f"{top}/b":
            return
    if listed == MAX_LISTED:
        pytest.skip(f"not known: {top}/b is not among the first {MAX_LISTED} entries of this account")
    pytest.fail(f"{top}/b is not among the {listed} entries below /")


@needs("folders")
def test_mkdir_again_is_no_error(driver: Any, top: str) -> None:
    driver.mkdir(f"{top}/x/y/z")
    driver.mkdir(f"{top}/x/y/z")
    driver.mkdir(f"{top}/x")
    assert driver.stat(f"{top}/x/y").is_folder


@needs("no folders")
def test_mkdir_does_nothing(driver: Any, top: str) -> None:
    driver.mkdir(f"{top}/x/y")
    assert list(driver.list(top)) == []


def test_delete_removes_a_tree(driver: Any, top: str) -> None:
    driver.put(f"{top}/x/y/a", LiteralContent(b"1"))
    driver.put(f"{top}/xy", LiteralContent(b"2"))
    driver.delete(f"{top}/x")
    assert [entry.path for entry in driver.list(top)] == [f"{top}/xy"]
    require_refusal(ErrorKind.NOT_FOUND, lambda: driver.stat(f"{top}/x/y/a"))


# --- missing paths and conflicts ---


def access_missing_path(driver: Any, top: str, verb: str) -> Callable[[], object]:
    actions: dict[str, Callable[[], object]] = {
        "get": lambda: list(driver.get(f"{top}/no")),
        "stat": lambda: driver.stat(f"{top}/no"),
        "list": lambda: list(driver.list(f"{top}/no")),
        "delete": lambda: driver.delete(f"{top}/no"),
    }
    return actions[verb]


@pytest.mark.parametrize(
    "verb",
    [
        "get",
        "stat",
        pytest.param("list", marks=needs("no lists_by_prefix")),
        pytest.param("delete", marks=needs("no deletes_missing")),
    ],
)
def test_not_found(driver: Any, top: str, verb: str) -> None:
    error = require_refusal(ErrorKind.NOT_FOUND, access_missing_path(driver, top, verb))
    assert (error.operation, error.path) == (verb, f"{top}/no")
    assert error.__cause__ is not None, (
        f"{error}: has no cause; raise it from the library's error, or from one of your own"
    )
    assert error.retry_after_s is None


@needs("lists_by_prefix")
def test_missing_folder_lists_as_empty(driver: Any, top: str) -> None:
    assert list(driver.list(f"{top}/no")) == []


@needs("deletes_missing")
def test_deleting_a_missing_path_is_no_error(driver: Any, top: str) -> None:
    driver.delete(f"{top}/no")


@pytest.mark.parametrize(
    "conflict", [pytest.param(case, marks=needs(case), id=case.name.lower()) for case in list(Conflict)[:4]]
)
def test_conflicts(driver: Any, top: str, conflict: Conflict) -> None:
    driver.put(f"{top}/file", LiteralContent(b"1"))
    driver.mkdir(f"{top}/folder")
    actions: dict[Conflict, Callable[[], object]] = {
        Conflict.PUT_ON_FOLDER: lambda: driver.put(f"{top}/folder", LiteralContent(b"2")),
        Conflict.PUT_BELOW_FILE: lambda: driver.put(f"{top}/file/below", LiteralContent(b"2")),
        Conflict.GET_FOLDER: lambda: list(driver.get(f"{top}/folder")),
        Conflict.MKDIR_ON_FILE: lambda: driver.mkdir(f"{top}/file"),
    }
    require_refusal(ErrorKind.CONFLICT, actions[conflict])
    assert read_content(driver, f"{top}/file") == b"1"


# --- operations that only some drivers have ---


@needs(Verb.COPY)
def test_copy(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", LiteralContent(b"abc"))
    copied = driver.copy(f"{top}/a", f"{top}/b")
    assert (copied.path, copied.size_bytes) == (f"{top}/b", 3)
    assert {entry.path for entry in driver.list(top)} == {f"{top}/a", f"{top}/b"}
    assert read_content(driver, f"{top}/b") == b"abc"
    require_refusal(ErrorKind.NOT_FOUND, lambda: driver.copy(f"{top}/no", f"{top}/c"))


@needs(Verb.COPY, Conflict.COPY_ON_EXISTING)
def test_copy_onto_a_file_is_refused(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", LiteralContent(b"abc"))
    driver.put(f"{top}/b", LiteralContent(b"other"))
    require_refusal(ErrorKind.CONFLICT, lambda: driver.copy(f"{top}/a", f"{top}/b"))
    assert read_content(driver, f"{top}/b") == b"other"


@needs(Verb.MOVE)
def test_move(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", LiteralContent(b"abc"))
    assert driver.move(f"{top}/a", f"{top}/b").path == f"{top}/b"
    assert [entry.path for entry in driver.list(top)] == [f"{top}/b"]
    assert read_content(driver, f"{top}/b") == b"abc"
    require_refusal(ErrorKind.NOT_FOUND, lambda: driver.move(f"{top}/no", f"{top}/c"))


@needs(Verb.MOVE, Conflict.MOVE_ON_EXISTING)
def test_move_onto_a_file_is_refused(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", LiteralContent(b"abc"))
    driver.put(f"{top}/b", LiteralContent(b"other"))
    require_refusal(ErrorKind.CONFLICT, lambda: driver.move(f"{top}/a", f"{top}/b"))
    assert sorted(entry.size_bytes for entry in driver.list(top)) == [3, 5]


@pytest.mark.parametrize(
    ("verb", "leaves"),
    [
        pytest.param("copy", True, marks=needs("copies_folders")),
        pytest.param("move", False, marks=needs("moves_folders")),
    ],
)
def test_copy_or_move_of_a_folder_takes_all_it_holds(driver: Any, top: str, verb: str, leaves: bool) -> None:
    driver.put(f"{top}/x/y/a", LiteralContent(b"abc"))
    getattr(driver, verb)(f"{top}/x", f"{top}/z")
    expected = {f"{top}/z/y/a"} | ({f"{top}/x/y/a"} if leaves else set())
    assert {entry.path for entry in files_below(driver, top)} == expected
    assert read_content(driver, f"{top}/z/y/a") == b"abc"


@needs(Verb.SHARE)
def test_share_and_revoke(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", LiteralContent(b"abc"))
    url = driver.share(f"{top}/a")
    assert url.startswith("https://")
    driver.revoke(url)
    require_refusal(ErrorKind.NOT_FOUND, lambda: driver.revoke(url))
    require_refusal(ErrorKind.NOT_FOUND, lambda: driver.share(f"{top}/no"))


@needs(Verb.SHARE)
def test_a_link_opens_without_an_account_until_it_is_revoked(driver: Any, sandbox: Sandbox, top: str) -> None:
    opener, stranger = sandbox.provider.driver, Stranger(sandbox.provider.endpoint)
    if not isinstance(opener, SharesLinks):
        pytest.skip("not declared: how a person without an account opens a link (open_link)")
    data = RandomContent("shared", 3000).read(0, 3000)
    driver.put(f"{top}/a", LiteralContent(data))
    url = driver.share(f"{top}/a")

    def opens() -> bool:
        try:
            return opener.open_link(url, stranger) == data
        except CloudError as error:
            if error.kind not in {ErrorKind.NOT_FOUND, ErrorKind.AUTH}:
                raise
            return False

    assert wait_for(opens, LINK_S, poll_s=LINK_POLL_S), "the link does not open"
    driver.revoke(url)
    assert wait_for(lambda: not opens(), LINK_S, poll_s=LINK_POLL_S), "the link still opens"


@needs(Verb.SHARE, Conflict.SHARE_AGAIN)
def test_a_second_share_is_refused(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", LiteralContent(b"abc"))
    driver.share(f"{top}/a")
    require_refusal(ErrorKind.CONFLICT, lambda: driver.share(f"{top}/a"))


@needs("space")
def test_space(driver: Any) -> None:
    used_bytes, total_bytes = driver.space()
    assert 0 <= used_bytes <= total_bytes


# --- many at once ---


def test_sixteen_threads(driver: Any, top: str) -> None:
    def use_driver(number: int) -> list[Entry]:
        path = f"{top}/thread-{number}"
        data = RandomContent(f"thread {number}", 3000 + number).read(0, 4000)
        for turn in range(10):
            file = f"{path}/a" if driver.capabilities.overwrites else f"{path}/{turn}"
            driver.put(file, LiteralContent(data))
            assert not content_difference(read_content(driver, file), data)
            require_refusal(ErrorKind.NOT_FOUND, lambda: driver.stat(f"{path}/no"))
        return list(driver.list(path))

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(use_driver, range(16)))
    files = 1 if driver.capabilities.overwrites else 10
    assert [[entry.size_bytes for entry in entries] for entries in results] == [[3000 + n] * files for n in range(16)]
