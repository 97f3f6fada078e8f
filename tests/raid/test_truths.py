"""What an array must and must not do when children fail, lie or disappear."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from pytest_cloudbench.model import MIB, CloudError, Content, Entry, ErrorKind
from pytest_cloudbench.raid.coding.policies import FixedHedge, Split
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.driver import RaidDriver
from pytest_cloudbench.raid.metadata import MissingPackage
from pytest_cloudbench.raid.survey import survey_array
from pytest_cloudbench.raid.upkeep import delete_leftovers
from pytest_cloudbench.support.clock import wait_for
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .harness import Child, Lab

Make = Callable[..., Lab]
CONTENT = random.Random(3).randbytes(2 * MIB + 12345)


def content_of(driver: RaidDriver, path: str = "/a") -> bytes:
    return b"".join(driver.get(path))


def refusal(kind: ErrorKind, action: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    return caught.value


def stored_but_failed() -> None:
    """After a put: the answer of a child that has stored what it was given."""
    raise CloudError(ErrorKind.NETWORK, "put", "/", detail="reset after it was stored")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# --- any k, not k - 1 ---


def test_any_k_children_give_every_object_and_k_less_one_fail_loudly(lab: Make) -> None:
    made = lab(2, 2, mends=False)
    with made.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        for lost in combinations(range(4), 2):
            for child in lost:
                made.children[child].fails = {"get": ErrorKind.SERVER}
            assert content_of(driver) == CONTENT, lost
            third = next(child for child in range(4) if child not in lost)
            made.children[third].fails = {"get": ErrorKind.SERVER}
            error = refusal(ErrorKind.SERVER, lambda: content_of(driver))
            assert "1 of 4 children returned their shares, and 2 are needed" in error.detail
            for each in made.children:
                each.fails.clear()


def test_children_that_answer_500_are_replaced_by_others_and_counted(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened(hedge=FixedHedge(None)) as driver:
        driver.put("/a", Literal(CONTENT))
        made.children[0].fails = {"get": ErrorKind.SERVER}
        assert content_of(driver) == CONTENT
        costs = driver.ledger.last()
        assert costs is not None
        assert (costs.failed, costs.damaged, costs.missing) == (3, 0, 0)  # once for each segment


def test_a_frozen_child_delays_a_read_by_the_patience_only(lab: Make) -> None:
    made = lab(2, 1, patience_s=0.01)
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
        made.children[0].frozen = {"get"}
        assert content_of(driver) == b"content"
        costs = driver.ledger.last()
        assert costs is not None
        assert costs.hedged == 1


def test_without_a_child_beyond_k_a_read_waits(lab: Make) -> None:
    """There is no other child to ask: the late answer is used."""
    made = lab(2, 0, patience_s=0.001)
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
        made.children[0].frozen = {"get"}
        pieces = driver.get("/a")
        made.children[0].thawed.set()
        assert b"".join(pieces) == b"content"


# --- damage is located ---


class First(FixedHedge):
    """Asks one child before the others."""

    first = 0

    def order(self, split: Split, share_bytes: int) -> Sequence[int]:
        return sorted(super().order(split, share_bytes), key=lambda child: child != self.first)


@pytest.mark.parametrize("child", [0, 1, 2])
def test_a_flipped_bit_names_its_share_and_is_mended(lab: Make, child: int) -> None:
    made, hedge = lab(1, 2), First(None)
    with made.opened(hedge=hedge) as driver:
        driver.put("/a", Literal(b"content"))
        (package,) = made.children[child].packages.values()
        written = package.read_bytes()
        flip(package, -1)
        type(hedge).first = child
        for other in {0, 1, 2} - {child}:
            made.children[other].fails = {"get": ErrorKind.SERVER}
        error = refusal(ErrorKind.CORRUPT, lambda: content_of(driver))
        assert f"/{child}: corrupt (1 of 1 shares differ from what was written)" in error.detail
        for other in {0, 1, 2} - {child}:
            made.children[other].fails = {}
        assert content_of(driver) == b"content"
        costs = driver.ledger.last()
        assert costs is not None
        assert (costs.damaged, costs.failed, costs.missing) == (1, 0, 0)
        assert driver.settle(10)
        assert package.read_bytes()[-8:] == written[-8:]
        assert driver.ledger.totals()["mend"].mended == 1


def test_packages_of_two_objects_that_were_swapped_are_no_packages(lab: Make) -> None:
    made = lab(1, 1, mends=False)
    with made.opened() as driver:
        driver.put("/a", Literal(b"first"))
        driver.put("/b", Literal(b"other"))
        one, other = made.children[0].packages.values()
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        assert (content_of(driver, "/a"), content_of(driver, "/b")) == (b"first", b"other")
        totals = driver.ledger.totals()["get"]
        assert totals.damaged == 2


def test_an_emptied_child_is_filled_again_by_reading(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        before = {name: path.stat().st_size for name, path in made.children[0].packages.items()}
        made.lose_child(0)
        assert content_of(driver) == CONTENT
        assert driver.settle(10)
        assert {name: path.stat().st_size for name, path in made.children[0].packages.items()} == before
        assert content_of(driver) == CONTENT
        costs = driver.ledger.last()
        assert costs is not None
        assert costs.missing == 0


# --- writes ---


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(b"old"))
        before = [set(child.packages) for child in made.children]
        made.children[1].fails = {"put": ErrorKind.QUOTA}
        error = refusal(ErrorKind.QUOTA, lambda: driver.put("/a", Literal(CONTENT)))
        assert "1 of 3 children failed, but a write must reach all" in error.detail
        assert content_of(driver) == b"old"
        assert driver.settle(10)
        assert [set(child.packages) for child in made.children] == before
        refusal(ErrorKind.QUOTA, lambda: driver.put("/new", Literal(b"new")))
        refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/new"))


def test_a_throttled_child_makes_the_write_throttled_which_is_no_failure(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        made.children[2].fails = {"put": ErrorKind.THROTTLED}
        refusal(ErrorKind.THROTTLED, lambda: driver.put("/a", Literal(b"1")))


def test_a_write_is_done_at_its_stated_durability_and_finished_later(lab: Make) -> None:
    made = lab(2, 2, durability="k+1")
    with made.opened() as driver:
        made.children[3].frozen = {"put"}
        driver.put("/a", Literal(b"content"))
        assert [len(child.packages) for child in made.children] == [1, 1, 1, 0]
        assert [each.child for each in driver.array.metadata.missing_packages()] == [3]
        made.children[3].thawed.set()
        assert driver.settle(10)
        assert len(made.children[3].packages) == 1
        assert driver.array.metadata.missing_packages() == []


def test_what_arrives_late_is_what_was_written_although_its_memory_is_used_again(lab: Make) -> None:
    made = lab(2, 2, durability="k+1")
    with made.opened() as driver:
        made.children[3].frozen = {"put"}
        content = random.Random(4).randbytes(5 * MIB)
        driver.put("/a", Literal(content))
        driver.put("/b", Literal(bytes(5 * MIB)))
        made.children[3].thawed.set()
        assert driver.settle(HANG_S)
        assert survey_array(driver.array, deep=True).is_healthy
        assert "mend" not in driver.ledger.totals()
        assert content_of(driver) == content


def test_what_arrives_after_its_write_has_failed_is_deleted(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        made.children[0].fails, made.children[2].frozen = {"put": ErrorKind.SERVER}, {"put"}
        refusal(ErrorKind.SERVER, lambda: driver.put("/a", Literal(b"content")))
        assert wait_for(lambda: driver.array.pending.count == 1, HANG_S, poll_s=0.01), "the second child has its own"
        delete_leftovers(driver.array, driver.array.metadata.garbage(), Costs())
        assert [each.child for each in driver.array.metadata.garbage()] == [2], "it may still arrive"
        made.children[2].thawed.set()
        assert driver.settle(HANG_S)
        assert [len(child.packages) for child in made.children] == [0, 0, 0]


def test_a_child_that_hangs_does_not_hold_up_a_deletion(lab: Make) -> None:
    made = lab(2, 1, patience_s=0.02)
    with made.opened() as driver:
        for name in ("/a", "/b"):
            driver.put(name, Literal(b"content"))
        hanging = made.children[2]
        hanging.frozen = {"delete"}
        driver.delete("/a")
        assert hanging.froze.is_set()
        assert [each.path for each in driver.list("/")] == ["/b"]
        driver.delete("/b")
        others = made.children[:2]
        assert wait_for(lambda: not any(child.packages for child in others), HANG_S, poll_s=0.01)
        assert not driver.settle(0.1), "a child still has packages"
        assert hanging.asked.count("delete") == 2, "it was asked for each once, not again and again"
        hanging.thawed.set()
        assert driver.settle(HANG_S)
        assert not hanging.packages
        assert driver.array.metadata.garbage() == []
        assert driver.ledger.totals()["tidy"].failed == 0


def test_a_deletion_that_fails_after_all_is_tried_again(lab: Make) -> None:
    made = lab(2, 1, patience_s=0.02)
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
        hanging = made.children[2]
        hanging.frozen, hanging.fails_late = {"delete"}, {"delete": ErrorKind.SERVER}
        driver.delete("/a")
        hanging.thawed.set()
        assert wait_for(lambda: not hanging.packages, HANG_S, poll_s=0.01)
        assert driver.settle(HANG_S)
        assert driver.ledger.totals()["tidy"].failed == 1


def test_what_arrives_is_not_made_again_before_that_is_noted(lab: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lab(2, 2, durability="k+1")
    with made.opened() as driver:
        note_transfer_end = driver.array.metadata.note_transfer_end

        def slowly(package: MissingPackage, segments: int, *, has_it: bool) -> None:
            driver.settle(0.5)  # the package is listed as missing, and upkeep looks
            note_transfer_end(package, segments, has_it=has_it)

        monkeypatch.setattr(driver.array.metadata, "note_transfer_end", slowly)
        made.children[3].frozen = {"put"}
        driver.put("/a", Literal(CONTENT))
        made.children[3].thawed.set()
        assert driver.settle(HANG_S)
        assert "mend" not in driver.ledger.totals()


def test_what_arrives_after_upkeep_has_looked_is_not_made_again(lab: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lab(2, 2, durability="k+1")
    with made.opened() as driver:
        missing_packages = driver.array.metadata.missing_packages

        def outdated(*, own: bool = False) -> Sequence[MissingPackage]:
            found = missing_packages(own=own)
            made.children[3].thawed.set()
            assert wait_for(lambda: not missing_packages(own=True), HANG_S, poll_s=0.01)
            return found

        made.children[3].frozen = {"put"}
        driver.put("/a", Literal(CONTENT))
        monkeypatch.setattr(driver.array.metadata, "missing_packages", outdated)
        assert driver.settle(HANG_S)
        assert "mend" not in driver.ledger.totals()


def test_a_child_that_fails_after_the_write_was_done_gets_its_package_when_it_is_back(lab: Make) -> None:
    made = lab(2, 1, durability="k+0")
    with made.opened() as driver:
        made.children[0].fails = {"put": ErrorKind.SERVER}
        driver.put("/a", Literal(CONTENT))
        assert content_of(driver) == CONTENT
        made.children[0].fails.clear()
        assert driver.settle(20)
        assert len(made.children[0].packages) == 3


def test_what_a_child_stored_and_said_it_had_not_is_deleted_with_its_object(lab: Make) -> None:
    """The package is rebuilt while the object is deleted; then the child stores it, and fails."""
    made = lab(2, 1, durability="k+0")
    with made.opened() as driver:
        slow = made.children[2]
        slow.fails = {"put": ErrorKind.SERVER}
        driver.put("/a", Literal(CONTENT[:1000]))
        slow.fails, slow.frozen, slow.after_put = {}, {"put"}, stored_but_failed
        driver.array.pending.wake()
        assert slow.froze.wait(HANG_S), "upkeep rebuilds it"
        driver.delete("/a")
        slow.thawed.set()
        assert driver.settle(HANG_S)
        assert [len(child.packages) for child in made.children] == [0, 0, 0]


def test_a_child_that_is_far_behind_is_left_out_until_it_has_caught_up(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a frozen child does not fill the memory: it is noted, and rebuilt later."""
    monkeypatch.setattr("pytest_cloudbench.raid.transfers._MOST_QUEUED_BYTES", 10_000)
    made = lab(2, 1, durability="k+0")
    with made.opened() as driver:
        made.children[2].frozen = {"put"}
        for number in range(6):
            driver.put(f"/{number}", Literal(bytes(10_000)))
        assert made.children[2].asked.count("put") <= 3  # two from writes, and one from rebuilding
        assert {each.child for each in driver.array.metadata.missing_packages()} == {2}
        made.children[2].thawed.set()
        assert driver.settle(HANG_S)
        assert len(made.children[2].packages) == 6


def test_nothing_keeps_a_package_in_memory_when_its_transfer_has_ended(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the frames of a failed child's error nor an idle thread may keep packages: 64 would be 256 MiB."""
    made = lab(2, 1, durability="k+0")
    packages: list[weakref.ref[Content]] = []
    put = Child.put

    def noted(child: Child, path: str, content: Content) -> Entry:
        packages.append(weakref.ref(content))
        return put(child, path, content)

    monkeypatch.setattr(Child, "put", noted)
    gc.disable()
    try:
        with made.opened() as driver:
            made.children[2].fails = {"put": ErrorKind.SERVER}
            for number in range(4):
                driver.put(f"/{number}", Literal(CONTENT))
            made.children[2].fails.clear()
            assert driver.settle(HANG_S)
            assert len(packages) >= 4 * 3 * (3 + 1), "two arrive at once, the third fails and is rebuilt"
            assert wait_for(lambda: not any(package() for package in packages), HANG_S, poll_s=0.01)
    finally:
        gc.enable()


def test_a_disk_that_is_full_is_an_error_of_the_seam_and_changes_nothing(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(b"old"))
        database = driver.array.metadata._db
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")  # no page can be added

        def fill() -> None:
            for number in range(50):
                driver.put(f"/{number}/{'x' * 3000}", Literal(b"new"))

        assert "database or disk is full" in refusal(ErrorKind.SERVER, fill).detail
        assert content_of(driver) == b"old"
        assert {content_of(driver, entry.path) for entry in driver.list("/")} <= {b"old", b"new"}
        database.execute("PRAGMA max_page_count = 1000000")
        driver.put("/a", Literal(b"new"))
        assert content_of(driver) == b"new"


def test_fewer_than_the_stated_durability_is_an_error(lab: Make) -> None:
    made = lab(2, 2, durability="k+1")
    with made.opened() as driver:
        for child in (0, 1):
            made.children[child].fails = {"put": ErrorKind.NETWORK}
        error = refusal(ErrorKind.NETWORK, lambda: driver.put("/a", Literal(b"1")))
        assert "2 of 4 children failed, but a write must reach k+1" in error.detail
        refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/a"))


# --- metadata is lost ---


def test_metadata_is_made_again_from_any_k_children_with_the_key_alone(lab: Make) -> None:
    made = lab(2, 2)
    objects = {"/x/a": CONTENT, "/x/ü": b"", "/y": b"small"}
    with made.opened() as driver:
        for path, content in objects.items():
            driver.put(path, Literal(b"an older version"))
            driver.put(path, Literal(content))
        assert driver.settle(10)
    for lost in combinations(range(4), 2):
        made.lose_metadata()
        with made.opened() as driver:
            for child in lost:
                made.children[child].fails = dict.fromkeys(("list", "get", "put"), ErrorKind.NETWORK)
            assert {entry.path: entry.size_bytes for entry in driver.list("/")} == {
                path: len(content) for path, content in objects.items()
            }, lost
            assert {path: content_of(driver, path) for path in objects} == objects


def test_with_fewer_than_k_children_nothing_is_recovered_and_nothing_is_written(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
    made.lose_metadata()
    with made.opened() as driver:
        for child in (0, 1):
            made.children[child].fails = {"list": ErrorKind.NETWORK}
        error = refusal(ErrorKind.NETWORK, lambda: driver.put("/b", Literal(b"1")))
        assert "1 of 3 children answer, and 2 are needed to begin" in error.detail
        for each in made.children:
            each.fails.clear()
        assert content_of(driver) == b"content"


def interrupted(made: Lab, path: str, content: bytes) -> None:
    """Leave the state of a process killed when one child has the first package of a new version."""
    with made.opened() as driver:
        before = [{name: file.read_bytes() for name, file in child.packages.items()} for child in made.children]
        driver.put(path, Literal(content))
        assert driver.settle(10)
        (begun,) = made.children[0].packages.keys() - before[0].keys()
        kept = made.children[0].packages[begun].read_bytes()
        for child, packages in zip(made.children, before, strict=True):
            for file in child.packages.values():
                file.unlink()
            for name, data in packages.items():
                (child.root / "cloudraid" / name).write_bytes(data)
        (made.children[0].root / "cloudraid" / begun).write_bytes(kept)
    made.lose_metadata()


def test_a_write_that_was_interrupted_does_not_hinder_recovery_without_the_children_that_may_fail(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(b"first"))
        driver.put("/z", Literal(b"last"))
    interrupted(made, "/a", b"never acknowledged")
    with made.opened() as driver:
        made.children[2].fails = dict.fromkeys(("list", "get", "put"), ErrorKind.NETWORK)
        assert {path: content_of(driver, path) for path in ("/a", "/z")} == {"/a": b"first", "/z": b"last"}


def test_where_a_silent_child_may_have_what_was_acknowledged_recovery_waits_and_says_what_to_do(lab: Make) -> None:
    made = lab(2, 1, durability="k+0")  # acknowledged when two of the three have it
    with made.opened() as driver:
        driver.put("/a", Literal(b"first"))
        assert driver.settle(10)
    interrupted(made, "/a", b"perhaps acknowledged")
    with made.opened() as driver:
        made.children[2].fails = dict.fromkeys(("list", "get", "put"), ErrorKind.NETWORK)
        error = refusal(ErrorKind.NETWORK, lambda: content_of(driver))
        assert "1 objects may be newer on children that do not answer; if one of them is gone for good" in error.detail


def test_another_key_opens_nothing(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(b"content"))
    made.lose_metadata()
    key = (made.folder / "array.key").read_text()
    (made.folder / "array.key").write_text("a1" * 32)
    with made.opened() as driver:
        error = refusal(ErrorKind.AUTH, lambda: driver.put("/a", Literal(b"1")))
        assert "not sealed with this key" in error.detail
    (made.folder / "array.key").write_text(key)
    with made.opened() as driver:
        assert content_of(driver) == b"content", "the wrong key has left nothing"


def test_a_stale_child_does_not_bring_an_old_version_back(lab: Make) -> None:
    """A child is reset to an older state: neither reads nor recovery take that for the newest."""
    made = lab(1, 1, mends=False)
    with made.opened() as driver:
        driver.put("/a", Literal(b"old"))
        old = {name: path.read_bytes() for name, path in made.children[0].packages.items()}
        driver.put("/a", Literal(b"new"))
        assert driver.settle(10)
        for path in made.children[0].packages.values():
            path.unlink()
        for name, content in old.items():
            (made.children[0].root / "cloudraid" / name).write_bytes(content)
        assert content_of(driver) == b"new"
    made.lose_metadata()
    with made.opened() as driver:
        assert content_of(driver) == b"new"
        assert driver.settle(10)
        assert not set(old) & set(made.children[0].packages)


def test_deleted_objects_do_not_come_back(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/a", Literal(CONTENT))
        driver.put("/b/c", Literal(b"1"))
        made.children[0].fails = {"delete": ErrorKind.SERVER}
        driver.delete("/a")
        driver.delete("/b")
        made.children[0].fails.clear()
        assert driver.settle(10)
        assert [child.packages for child in made.children] == [{}, {}, {}]
    made.lose_metadata()
    with made.opened() as driver:
        assert list(driver.list("/")) == []


def test_children_learn_neither_names_nor_content(lab: Make) -> None:
    made = lab(2, 1)
    with made.opened() as driver:
        driver.put("/secret-name", Literal(b"secret content " * 1000))
        names = [name for child in made.children for name in child.packages]
        stored = b"".join(path.read_bytes() for child in made.children for path in child.packages.values())
    assert len(set(names)) == 3
    assert b"secret" not in stored
    assert b"array" not in stored
    assert not [name for name in names if "secret" in name]
