"""The part of the Google Drive driver that turns paths into ids, and remembers those of folders.

Several files and folders may have one name. One rule says which of them a path means, whatever is done with it: the
folder that was created first, and where there is no folder, the file that was changed last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from pytest_cloudbench.drivers._gdrive_search import SearchesDrive, escape_name
from pytest_cloudbench.model import CloudError, ErrorKind

FOLDER_TYPE = "application/vnd.google-apps.folder"
FILE_FIELDS = "id,name,mimeType,size,md5Checksum,headRevisionId"
_SEARCH_FIELDS = f"{FILE_FIELDS},createdTime,modifiedTime,webViewLink"
_FULLWIDTH_SLASH = "\N{FULLWIDTH SOLIDUS}"

_Result = TypeVar("_Result")


class FindsDriveFiles(SearchesDrive):
    """Finds files by their paths. The driver puts the id of its root at the empty path."""

    _refusal: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._folders: dict[str, str] = {}
        self._folders_lock = RLock()

    def _search_files(self, folder_id: str, name: str) -> Sequence[dict[str, Any]]:
        """Return what has a name in a folder. The path means the first one."""
        query = f"'{folder_id}' in parents and name = '{escape_name(name)}' and trashed = false"
        found = [file for file in self._search(query, _SEARCH_FIELDS) if file["name"] == name]  # it ignores case
        folders = [file for file in found if file["mimeType"] == FOLDER_TYPE]
        files = [file for file in found if file["mimeType"] != FOLDER_TYPE]
        files.sort(key=lambda file: str(file.get("modifiedTime", "")), reverse=True)
        return [*sorted(folders, key=_age_of_folder), *files]

    def _folder_id(self, verb: str, path: str, names: Sequence[str], *, makes: bool = False) -> str:
        """Return the id of a folder, from memory as far as it goes. Creates what is missing if ``makes``."""
        folder = "/".join(names)
        if (folder_id := self._folders.get(folder)) is not None:
            return folder_id
        with self._folders_lock:  # two threads would make the same folder twice
            parent_id = self._folder_id(verb, path, names[:-1], makes=makes)
            if folder not in self._folders:
                self._folders[folder] = self._look_up_folder(verb, path, parent_id, names[-1], makes=makes)
            return self._folders[folder]

    def _look_up_folder(self, verb: str, path: str, parent_id: str, name: str, *, makes: bool) -> str:
        files = self._search_files(parent_id, name)
        if files and files[0]["mimeType"] == FOLDER_TYPE:
            return str(files[0]["id"])
        if files and makes:
            raise_error(ErrorKind.CONFLICT, verb, path, f"{name!r} is a file")
        if not makes:
            raise_error(ErrorKind.NOT_FOUND, verb, path, f"there is no folder {name!r}")
        return self._create_folder(parent_id, name)

    def _create_folder(self, parent_id: str, name: str) -> str:
        """Create a folder and return its id, or that of an older one which another process has made meanwhile."""
        body = {"name": name, "mimeType": FOLDER_TYPE, "parents": [parent_id]}
        own = self._send(self._files.create(body=body, fields="id,createdTime", supportsAllDrives=True))
        others = [file for file in self._search_files(parent_id, name) if file["mimeType"] == FOLDER_TYPE]
        oldest = min(own, *others, key=_age_of_folder)  # a search may not show the own one yet
        if oldest["id"] != own["id"]:
            self._remove_empty_folder(str(own["id"]))
        return str(oldest["id"])

    def _remove_empty_folder(self, folder_id: str) -> None:
        """Remove a folder unless something is in it. If the service refuses that, it stays, which does no harm."""
        try:
            if not any(self._search(f"'{folder_id}' in parents", "id", 1)):
                self._send(self._files.delete(fileId=folder_id, supportsAllDrives=True))
        except self._refusal:
            return

    def _forget_folder(self, names: Sequence[str]) -> None:
        """Forget a folder and all below it."""
        prefix = "/".join(names) + "/"
        with self._folders_lock:
            for folder in [other for other in self._folders if other and f"{other}/".startswith(prefix)]:
                del self._folders[folder]

    def _act_in_folder(
        self, verb: str, path: str, action: Callable[[str, str], _Result], *, makes: bool = False
    ) -> _Result:
        """Call ``action`` with the id of the folder above a path, and with the path's last name.

        If a remembered folder turns out to be gone, it is looked up again: an old id says nothing about the path.
        """
        names = split_path(verb, path)
        if not names:
            raise_error(ErrorKind.INVALID, verb, path, "the root is not a file")
        was_known = len(names) > 1 and "/".join(names[:-1]) in self._folders
        folder_id = self._folder_id(verb, path, names[:-1], makes=makes)
        try:
            return action(folder_id, names[-1])
        except self._refusal as error:
            if not was_known or error.resp.status != 404:
                raise
            for depth in range(1, len(names)):
                self._forget_folder(names[:depth])
        return action(self._folder_id(verb, path, names[:-1], makes=makes), names[-1])

    def _find_file(self, verb: str, path: str) -> dict[str, Any]:
        """Return the file or folder that a path means now."""

        def search(folder_id: str, name: str) -> dict[str, Any]:
            files = self._search_files(folder_id, name)
            return files[0] if files else raise_error(ErrorKind.NOT_FOUND, verb, path, "there is no file of this name")

        return self._act_in_folder(verb, path, search)


def _age_of_folder(folder: Mapping[str, Any]) -> tuple[str, str]:
    """Return what puts folders of one name in the order of their creation, in the same way for all processes."""
    return str(folder["createdTime"]), str(folder["id"])


def raise_error(kind: ErrorKind, verb: str, path: str, detail: str) -> NoReturn:
    """Raise CloudError for what a successful search shows, with a cause that says the same."""
    raise CloudError(kind, verb, path, detail=detail) from LookupError(detail)


def split_path(verb: str, path: str) -> Sequence[str]:
    """Return the parts of a path. Raises CloudError if it is not a path."""
    names = path.split("/")[1:] if path.startswith("/") else [""]
    if path == "/":
        return []
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise_error(ErrorKind.INVALID, verb, path, "no absolute path without empty parts, '.' and '..'")
    return names


def name_in_path(name: str) -> str:
    """Return a name as a part of a path: on Google Drive it may hold a slash."""
    return name.replace("/", _FULLWIDTH_SLASH)


def file_id_in(url: str) -> str:
    """Return the id in the address of a file or folder."""
    parts = urlsplit(url).path.split("/")
    for mark in ("d", "folders"):
        if mark in parts[:-1]:
            return parts[parts.index(mark) + 1]
    return ""
