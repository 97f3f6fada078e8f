"""The part of the Box driver that shares folders with other accounts: collaborations, as Box calls them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_cloudbench.drivers.base import role_of_level
from pytest_cloudbench.drivers.keys import as_file
from pytest_cloudbench.drivers.sdk import SdkDriver
from pytest_cloudbench.model import Content


class SharesBoxFolders(SdkDriver):
    """Verbs about members, for a driver that has the SDK's managers and finds items by their paths."""

    member_roles: Mapping[str, str] = {
        "uploader": "", "previewer": "", "previewer uploader": "", "viewer": "read", "viewer uploader": "",
        "editor": "write", "co-owner": "full",
    }  # fmt: skip
    full_promises = frozenset({"write", "delete", "share"})
    """A co-owner edits and deletes files and invites people (support.box.com, article 360044196413, "Understanding
    Collaborator Permission Levels"). The role needs a Business or Enterprise plan, and is for folders only."""
    _sdk: Any
    _files: Any
    _users: Any
    _uploads: Any
    _listed: Any
    _members: Any

    @abstractmethod
    def _look_up_item(self, verb: str, path: str) -> tuple[str, str]:
        """Return type and id of the item at a path."""

    @abstractmethod
    def _read(self, path: str, file_id: str) -> Iterator[bytes]:
        """Yield the content of a file by its id."""

    def address(self) -> str:
        """Return the address by which others share with this account."""
        with self._cloud_errors("address", "/"):
            return str(self._users.get_user_me(fields=["login"]).login)

    def admit(self, path: str, address: str, level: str) -> None:
        """Let another account use a folder at a level of ``member_roles``. Sends it no e-mail."""
        _, folder_id = self._look_up_item("admit", path)
        ids = self._find_collaborations("admit", path, folder_id, address)
        with self._cloud_errors("admit", path):
            for collaboration_id in ids:
                role = self._sdk.UpdateCollaborationByIdRole(role_of_level(self.member_roles, level))
                self._members.update_collaboration_by_id(collaboration_id, role=role)
            if not ids:
                self._invite("folder", folder_id, address, level)

    def _invite(self, kind: str, item_id: str, address: str, level: str) -> None:
        item_type = self._sdk.CreateCollaborationItemTypeField(kind)
        item = self._sdk.CreateCollaborationItem(type=item_type, id=item_id)
        person_type = self._sdk.CreateCollaborationAccessibleByTypeField("user")
        person = self._sdk.CreateCollaborationAccessibleBy(person_type, login=address)
        role = self._sdk.CreateCollaborationRole(role_of_level(self.member_roles, level))
        self._members.create_collaboration(item, person, role, notify=False)

    def dismiss(self, path: str, address: str) -> None:
        """Undo ``admit``."""
        _, folder_id = self._look_up_item("dismiss", path)
        for collaboration_id in self._find_collaborations("dismiss", path, folder_id, address):
            with self._cloud_errors("dismiss", path):
                self._members.delete_collaboration_by_id(collaboration_id)

    def _find_collaborations(self, verb: str, path: str, folder_id: str, address: str) -> list[str]:
        """Return the ids of a folder's collaborations with an account."""
        with self._cloud_errors(verb, path):
            listed = self._listed.get_folder_collaborations(folder_id).entries or ()
            return [str(collaboration.id) for collaboration in listed if _is_with(collaboration, address)]

    def refer(self, path: str) -> str:
        """Return id and name, by which members find a file and store it again."""
        return f"{self._look_up_item('refer', path)[1]}/{path.rpartition('/')[2]}"

    def read_shared(self, reference: str) -> bytes:
        """Return the content of another account's file."""
        return b"".join(self._read(reference, reference.partition("/")[0]))

    def write_shared(self, reference: str, content: Content) -> None:
        """Replace the content of another account's file, which is small."""
        file_id, _, name = reference.partition("/")
        with self._cloud_errors("write", reference):
            attributes = self._sdk.UploadFileVersionAttributes(name=name)
            self._uploads.upload_file_version(file_id, attributes, as_file(content), file_file_name=name)

    def delete_shared(self, reference: str) -> None:
        """Move another account's file to that account's trash."""
        with self._cloud_errors("delete", reference):
            self._files.delete_file_by_id(reference.partition("/")[0])

    def share_on(self, reference: str, address: str) -> None:
        """Let a third account read another account's file. Sends it no e-mail."""
        with self._cloud_errors("share on", reference):
            self._invite("file", reference.partition("/")[0], address, "read")


def _is_with(collaboration: Any, address: str) -> bool:
    """Return whether a collaboration is with an address, also if the invitation is not accepted yet."""
    login = getattr(collaboration.accessible_by, "login", None) or collaboration.invite_email
    return str(login).lower() == address.lower()
