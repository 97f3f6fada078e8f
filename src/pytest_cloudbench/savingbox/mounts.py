"""Mounts inside the two folders. Where one is missing, an entry that is not there was not deleted.

A scan finds the mounts of each side, which are noted in the state file beside the agreements. At and below a mount that
is gone, nothing is done until it is back. Where another one has appeared, the agreements are dropped, so that both
sides are merged and nothing is deleted.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytest_cloudbench.savingbox.agreements import Side
from pytest_cloudbench.savingbox.listings import FoundAll, parents
from pytest_cloudbench.savingbox.store import AgreementStore
from pytest_cloudbench.support.watching import GONE

_MOUNTS = Path("/proc/self/mountinfo")
"""The kernel's list of mounts, see proc_pid_mountinfo(5)."""


def identify(target: str | int, status: os.stat_result) -> str:
    """Return what tells a folder, which has this status, from a folder of another file system. Raises OSError."""
    system = os.statvfs(target).f_fsid if hasattr(os, "statvfs") else status.st_dev
    return f"{system:x}:{status.st_ino}"


def find_mounts(root: str, folders: Iterable[str]) -> dict[str, str]:
    """Return the identities of the mounts inside a folder, by relative path.

    Args:
        root: the folder's path.
        folders: the relative paths of all folders in it, each before those in it, for systems that list no mounts.
    """
    mounts = dict[str, str]()
    for point in _find_points(root, folders):
        with suppress(OSError):  # it does not answer, or another mount hides it
            mounts[point] = _identify_entry(root, point)
    return mounts


def _find_points(root: str, folders: Iterable[str]) -> Iterator[str]:
    """Yield the mount points below a folder."""
    try:
        lines = _MOUNTS.read_bytes().split(b"\n")
    except OSError:
        yield from _find_other_devices(root, folders)
        return
    prefix = os.fsencode(os.path.realpath(root)).rstrip(b"/") + b"/"
    for line in lines:
        for field in line.split(b" ")[4:5]:  # in which spaces and backslashes are octal numbers
            point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), field)
            if point.startswith(prefix):
                yield os.fsdecode(point[len(prefix) :])


def _find_other_devices(root: str, folders: Iterable[str]) -> list[str]:
    """Return the folders that are on another device than the folder that they are in."""
    devices = dict[str, int]()
    for folder in folders:
        with suppress(OSError):
            device = os.lstat(f"{root}/{folder}").st_dev
            outer = [devices[parent] for parent in ("", *parents(folder)) if parent in devices]
            if outer[-1:] != [device]:
                devices[folder] = device
    return [folder for folder in devices if folder]


def _identify_entry(root: str, relative: str) -> str:
    path = f"{root}/{relative}"
    return identify(path, os.lstat(path))


class InnerMounts:
    """The mounts inside both folders, as they were when the entries below them were agreed on.

    Args:
        box: the path of the user's folder.
        sync: the path of the client's folder.
        store: their agreements.
    """

    def __init__(self, box: str, sync: str, store: AgreementStore) -> None:
        self._roots: Mapping[Side, str] = {"ours": box, "theirs": sync}
        self._store = store

    def take_scans(self, box: FoundAll, sync: FoundAll) -> tuple[FoundAll, FoundAll]:
        """Note the mounts of two scans. Returns the scans without the places of missing mounts, which are not known.

        Raises OSError.
        """
        return self._take_scan("ours", box), self._take_scan("theirs", sync)

    def must_be_there(self, *paths: str, with_inner: bool = False) -> None:
        """Raise OSError if one of these entries is at or below the place of a mount that is missing on either side.

        ``with_inner``: also if such a place is below the entry.
        """
        for side in self._roots:
            for mount, identity in (self._read_noted_mounts(side) or {}).items():
                is_near = any(
                    f"{path}/".startswith(f"{mount}/") or (with_inner and mount.startswith(f"{path}/"))
                    for path in paths
                )
                if is_near and self._identity_now(side, mount) != identity:
                    raise OSError(errno.ENODEV, f"{mount!r} is no longer mounted", paths[0])

    def forget(self) -> None:
        """Forget all mounts, before all agreements are dropped. Raises OSError."""
        self._store.write_meta(**{_meta_name(side): "" for side in self._roots})

    def _take_scan(self, side: Side, scan: FoundAll) -> FoundAll:
        """Return a scan without what is below missing mounts, and forget what was agreed on below new ones."""
        noted = self._read_noted_mounts(side)
        missing = {
            mount: identity
            for mount, identity in (noted or {}).items()
            if mount not in scan.mounts and self._is_missing(side, mount, identity)
        }
        new = [] if noted is None else [mount for mount in scan.mounts if noted.get(mount) != scan.mounts[mount]]
        for mount in new:
            for path in self._store.entries.paths_below(mount):
                self._store.replace(path, None)
        if new:
            self._store.flush()  # first, so that a kill in between does not leave old agreements on a new mount
        self._store.write_meta(**{_meta_name(side): json.dumps({**scan.mounts, **missing}, sort_keys=True)})
        return scan if not missing else replace(
            scan,
            entries={path: entry for path, entry in scan.entries.items() if path not in missing},
            unknown={**scan.unknown, **{mount: OSError(errno.ENODEV, "it is no longer mounted") for mount in missing}},
            gone=scan.gone - missing.keys(),
        )  # fmt: skip

    def _is_missing(self, side: Side, mount: str, identity: str) -> bool:
        """Return whether something else is in the place of a mount. Once nothing is there on both sides, it is not."""
        now = self._identity_now(side, mount)
        others = [self._identity_now(other, mount) for other in self._roots if other != side]
        return now != identity and any((now, *others))

    def _identity_now(self, side: Side, mount: str) -> str:
        """Return the identity of what is in the place of a mount, or an empty one if nothing is there."""
        try:
            return _identify_entry(self._roots[side], mount)
        except GONE:
            return ""
        except OSError as error:
            return f"{error}"

    def _read_noted_mounts(self, side: Side) -> Mapping[str, str] | None:
        """Return the noted mounts of one side, or None if there was no scan yet."""
        text = self._store.read_meta(_meta_name(side))
        return _parse_mounts(text) if text else None


def _meta_name(side: Side) -> str:
    return f"mounts {side}"


@functools.lru_cache(maxsize=2)
def _parse_mounts(text: str) -> Mapping[str, str]:
    """Return mounts from their stored form, which is read for each entry and rarely changes."""
    mounts: dict[str, str] = json.loads(text)
    return mounts
