"""Tests of the official Dropbox SDK with the emulator, function by function. Every answer is strictly decoded."""

from __future__ import annotations

import hashlib
import threading
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import dropbox
import pytest
from dropbox import common, files, sharing
from dropbox.exceptions import ApiError, AuthError, BadInputError, RateLimitError

from pytest_cloudbench.emulators import EmulatorService
from tests.limits import HANG_S

MIB = 1024 * 1024


def _hash(data: bytes) -> str:
    """Return the content hash by the published rule, independently of the emulator and the driver."""
    blocks = [data[start : start + 4 * MIB] for start in range(0, len(data), 4 * MIB)]
    return hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()


def _names(result: Any) -> list[str]:
    return [entry.path_display for entry in result.entries]


def test_upload_then_download(sdk: dropbox.Dropbox) -> None:
    at = datetime(2014, 3, 1, 12, 0, 5)
    metadata = sdk.files_upload(b"hello", "/A/ünï.txt", client_modified=at)
    assert (metadata.name, metadata.path_display, metadata.path_lower, metadata.size) == (
        "ünï.txt",
        "/A/ünï.txt",
        "/a/ünï.txt",
        5,
    )
    assert (metadata.client_modified, metadata.content_hash) == (at, _hash(b"hello"))
    download_metadata, response = sdk.files_download("/a/ÜNÏ.txt")
    assert (download_metadata.rev, response.content) == (metadata.rev, b"hello")
    assert sdk.files_download(metadata.id)[1].content == b"hello"
    assert sdk.files_download(f"rev:{metadata.rev}")[1].content == b"hello"
    assert sdk.files_get_metadata("/A").name == "A"


@pytest.mark.parametrize("size", [0, 1, 4 * MIB, 4 * MIB + 1, 9 * MIB])
def test_content_hash_of_streamed_uploads(sdk: dropbox.Dropbox, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    metadata = sdk.files_upload(data[:size], "/big.bin")
    assert (metadata.size, metadata.content_hash) == (size, _hash(data[:size]))
    assert sdk.files_download("/big.bin")[1].content == data[:size]


def test_upload_with_wrong_hash_is_refused(sdk: dropbox.Dropbox) -> None:
    with pytest.raises(ApiError) as caught:
        sdk.files_upload(b"hello", "/a.txt", content_hash="0" * 64)
    assert caught.value.error.is_content_hash_mismatch()
    assert sdk.files_upload(b"hello", "/a.txt", content_hash=_hash(b"hello")).size == 5


def test_write_modes(sdk: dropbox.Dropbox) -> None:
    first = sdk.files_upload(b"one", "/a.txt")
    assert sdk.files_upload(b"one", "/a.txt").rev == first.rev
    with pytest.raises(ApiError) as caught:
        sdk.files_upload(b"two", "/a.txt")
    failure = caught.value.error.get_path()
    assert failure.reason.get_conflict().is_file()
    assert failure.upload_session_id
    with pytest.raises(ApiError):
        sdk.files_upload(b"one", "/a.txt", strict_conflict=True)
    assert sdk.files_upload(b"two", "/a.txt", autorename=True).name == "a (1).txt"
    second = sdk.files_upload(b"two", "/a.txt", mode=files.WriteMode.overwrite)
    assert second.id == first.id
    assert second.rev != first.rev
    with pytest.raises(ApiError):
        sdk.files_upload(b"three", "/a.txt", mode=files.WriteMode.update(first.rev))
    assert sdk.files_upload(b"three", "/a.txt", mode=files.WriteMode.update(second.rev)).id == first.id
    renamed = sdk.files_upload(b"four", "/a.txt", mode=files.WriteMode.update(first.rev), autorename=True)
    assert renamed.name == "a (conflicted copy).txt"
    sdk.files_create_folder_v2("/folder")
    with pytest.raises(ApiError) as caught:
        sdk.files_upload(b"x", "/folder", mode=files.WriteMode.overwrite)
    assert caught.value.error.get_path().reason.get_conflict().is_folder()
    with pytest.raises(ApiError) as caught:
        sdk.files_upload(b"x", "/a.txt/below")
    assert caught.value.error.get_path().reason.get_conflict().is_file_ancestor()


def test_listing_in_pages_shows_changes_between_pages(sdk: dropbox.Dropbox) -> None:
    for number in range(5):
        sdk.files_upload(b"x", f"/in/{number}.bin")
    sdk.files_upload(b"x", "/out.bin")
    page = sdk.files_list_folder("/in", limit=2)
    assert (_names(page), page.has_more) == (["/in/0.bin", "/in/1.bin"], True)
    sdk.files_delete_v2("/in/3.bin")
    page = sdk.files_list_folder_continue(page.cursor)
    assert (_names(page), page.has_more) == (["/in/2.bin", "/in/4.bin"], False)
    page = sdk.files_list_folder_continue(page.cursor)
    assert [type(entry) for entry in page.entries] == [files.DeletedMetadata]
    sdk.files_upload(b"y", "/in/0.bin", mode=files.WriteMode.overwrite)
    sdk.files_upload(b"y", "/in/deeper/5.bin")
    sdk.files_upload(b"y", "/out2.bin")
    page = sdk.files_list_folder_continue(page.cursor)
    assert _names(page) == ["/in/0.bin", "/in/deeper"]
    assert sdk.files_list_folder_continue(page.cursor).entries == []


def test_listing_recursive_and_deleted(sdk: dropbox.Dropbox) -> None:
    sdk.files_upload(b"x", "/a/b/c.bin")
    sdk.files_upload(b"x", "/a/gone.bin")
    sdk.files_delete_v2("/a/gone.bin")
    assert _names(sdk.files_list_folder("/a", recursive=True)) == ["/a", "/a/b", "/a/b/c.bin"]
    assert _names(sdk.files_list_folder("", recursive=True)) == ["/a", "/a/b", "/a/b/c.bin"]
    assert _names(sdk.files_list_folder("/a", include_deleted=True)) == ["/a/b", "/a/gone.bin"]
    assert isinstance(sdk.files_list_folder("/a", include_deleted=True).entries[1], files.DeletedMetadata)
    assert isinstance(sdk.files_get_metadata("/a/gone.bin", include_deleted=True), files.DeletedMetadata)
    with pytest.raises(ApiError) as caught:
        sdk.files_list_folder("/a/b/c.bin")
    assert caught.value.error.get_path().is_not_folder()


class _Follower:
    """A client that follows all changes from now on, and knows which paths there are."""

    def __init__(self, sdk: dropbox.Dropbox) -> None:
        self._sdk = sdk
        page = sdk.files_list_folder("", recursive=True)
        self.paths, self._cursor = {entry.path_lower for entry in page.entries}, page.cursor

    def follow(self) -> set[str]:
        """Take in the changes as the API's documentation says, and return the paths."""
        page = self._sdk.files_list_folder_continue(self._cursor)
        for entry in page.entries:
            if isinstance(entry, files.DeletedMetadata):
                below = f"{entry.path_lower}/"
                self.paths = {path for path in self.paths if not f"{path}/".startswith(below)}
            else:
                self.paths.add(entry.path_lower)
        self._cursor = page.cursor
        return self.paths


@pytest.mark.parametrize("is_moved", [False, True])
def test_changes_tell_what_went_with_a_folder_that_was_made_anew(sdk: dropbox.Dropbox, is_moved: bool) -> None:
    sdk.files_upload(b"x", "/a/b/x.txt")
    follower = _Follower(sdk)
    if is_moved:
        sdk.files_move_v2("/a", "/elsewhere")
    else:
        sdk.files_delete_v2("/a")
    sdk.files_upload(b"y", "/a/b/y.txt")
    moved = {"/elsewhere", "/elsewhere/b", "/elsewhere/b/x.txt"} if is_moved else set()
    assert follower.follow() == {"/a", "/a/b", "/a/b/y.txt"} | moved


def test_changes_tell_what_was_deleted_permanently(sdk: dropbox.Dropbox) -> None:
    sdk.files_upload(b"x", "/a.txt")
    sdk.files_upload(b"x", "/folder/b.txt")
    follower = _Follower(sdk)
    sdk.files_permanently_delete("/a.txt")
    sdk.files_permanently_delete("/folder")
    assert follower.follow() == set()


def test_cursor_of_another_account_or_of_nobody(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    sdk.files_upload(b"x", "/a/1.bin")
    cursors = [sdk.files_list_folder_get_latest_cursor(path).cursor for path in ("", "/a")]
    emulator.control(reset=True)
    for _ in range(3):
        sdk.files_upload(b"x", "/new.bin", autorename=True, mode=files.WriteMode.overwrite)
    for cursor in cursors:
        with pytest.raises(ApiError) as caught:
            sdk.files_list_folder_continue(cursor)
        assert caught.value.error.is_reset()
    with pytest.raises(BadInputError):
        sdk.files_list_folder_continue("nonsense")


def test_longpoll_wakes_on_a_change(sdk: dropbox.Dropbox) -> None:
    sdk.files_create_folder_v2("/watched")
    cursor = sdk.files_list_folder_get_latest_cursor("/watched").cursor
    answers: list[bool] = []
    watcher = threading.Thread(target=lambda: answers.append(sdk.files_list_folder_longpoll(cursor).changes))
    watcher.start()
    sdk.files_upload(b"x", "/elsewhere.bin")
    sdk.files_upload(b"x", "/watched/1.bin")
    watcher.join(HANG_S)
    assert answers == [True]
    assert sdk.files_list_folder_longpoll(cursor).changes is True


def test_folders(sdk: dropbox.Dropbox) -> None:
    folder = sdk.files_create_folder_v2("/F/g").metadata
    assert sdk.files_get_metadata("/f/G").id == folder.id
    with pytest.raises(ApiError) as caught:
        sdk.files_create_folder_v2("/F/g")
    assert caught.value.error.get_path().get_conflict().is_folder()
    assert sdk.files_create_folder_v2("/F/g", autorename=True).metadata.name == "g (1)"
    assert sdk.files_delete_v2("/F").metadata.name == "F"
    with pytest.raises(ApiError) as caught:
        sdk.files_get_metadata("/F/g")
    assert caught.value.error.get_path().is_not_found()
    with pytest.raises(ApiError) as caught:
        sdk.files_delete_v2("/F")
    assert caught.value.error.get_path_lookup().is_not_found()


def test_delete_of_a_revision(sdk: dropbox.Dropbox) -> None:
    first = sdk.files_upload(b"one", "/a.txt")
    second = sdk.files_upload(b"two", "/a.txt", mode=files.WriteMode.overwrite)
    with pytest.raises(ApiError) as caught:
        sdk.files_delete_v2("/a.txt", parent_rev=first.rev)
    assert caught.value.error.get_path_write().get_conflict().is_file()
    assert sdk.files_delete_v2("/a.txt", parent_rev=second.rev).metadata.rev == second.rev


def test_move_and_copy(sdk: dropbox.Dropbox) -> None:
    metadata = sdk.files_upload(b"x", "/from/in/a.txt")
    moved = sdk.files_move_v2("/from", "/To").metadata
    assert moved.path_display == "/To"
    assert sdk.files_get_metadata("/to/in/a.txt").id == metadata.id
    copied = sdk.files_copy_v2("/to/in", "/copy").metadata
    assert isinstance(copied, files.FolderMetadata)
    twin = sdk.files_get_metadata("/copy/a.txt")
    assert (twin.content_hash, twin.id == metadata.id) == (metadata.content_hash, False)
    assert sdk.files_move_v2("/copy/a.txt", "/copy/A.txt").metadata.name == "A.txt"
    with pytest.raises(ApiError) as caught:
        sdk.files_move_v2("/nothing", "/x")
    assert caught.value.error.get_from_lookup().is_not_found()
    with pytest.raises(ApiError) as caught:
        sdk.files_copy_v2("/to/in/a.txt", "/copy/a.txt")
    assert caught.value.error.get_to().get_conflict().is_file()
    with pytest.raises(ApiError) as caught:
        sdk.files_move_v2("/to", "/to/in/deeper")
    assert caught.value.error.is_duplicated_or_nested_paths()


def test_revisions_and_restore(sdk: dropbox.Dropbox) -> None:
    revs = [sdk.files_upload(b"%d" % n, "/a.txt", mode=files.WriteMode.overwrite).rev for n in range(4)]
    listed = sdk.files_list_revisions("/a.txt", limit=3)
    assert [entry.rev for entry in listed.entries] == revs[:0:-1]
    assert not listed.is_deleted
    sdk.files_delete_v2("/a.txt")
    listed = sdk.files_list_revisions("/a.txt")
    assert listed.is_deleted
    assert listed.server_deleted is not None
    back = sdk.files_restore("/a.txt", revs[1])
    assert back.rev not in revs
    assert sdk.files_download("/a.txt")[1].content == b"1"
    assert sdk.files_list_revisions("/a.txt").entries[-1].rev == revs[0]
    with pytest.raises(ApiError) as caught:
        sdk.files_restore("/a.txt", "0123456789")
    assert caught.value.error.is_invalid_revision()
    with pytest.raises(ApiError) as caught:
        sdk.files_restore("/never.txt", "0123456789")
    assert caught.value.error.get_path_lookup().is_not_found()


@pytest.mark.filterwarnings("ignore:upload_session/.* is deprecated")
def test_sequential_upload_session(sdk: dropbox.Dropbox) -> None:
    session = sdk.files_upload_session_start(b"a" * 10).session_id
    sdk.files_upload_session_append_v2(b"b" * 5, files.UploadSessionCursor(session, 10))
    with pytest.raises(ApiError) as caught:
        sdk.files_upload_session_append_v2(b"b", files.UploadSessionCursor(session, 3))
    assert caught.value.error.get_incorrect_offset().correct_offset == 15
    sdk.files_upload_session_append(b"c", session, 15)
    metadata = sdk.files_upload_session_finish(b"d", files.UploadSessionCursor(session, 16), files.CommitInfo("/s.bin"))
    assert metadata.content_hash == _hash(b"a" * 10 + b"b" * 5 + b"cd")
    with pytest.raises(ApiError) as caught:
        sdk.files_upload_session_append_v2(b"x", files.UploadSessionCursor(session, 17))
    assert caught.value.error.is_not_found()
    closed = sdk.files_upload_session_start(b"a", close=True).session_id
    with pytest.raises(ApiError) as caught:
        sdk.files_upload_session_append_v2(b"x", files.UploadSessionCursor(closed, 1))
    assert caught.value.error.is_closed()


def test_concurrent_upload_session(sdk: dropbox.Dropbox) -> None:
    kind = files.UploadSessionType.concurrent
    session = sdk.files_upload_session_start(b"", session_type=kind).session_id
    commit = files.CommitInfo("/c.bin")
    parts = [b"%d" % number * 4 * MIB for number in range(2)] + [b"end"]
    for number in (2, 0):
        sdk.files_upload_session_append_v2(
            parts[number], files.UploadSessionCursor(session, number * 4 * MIB), close=False
        )
    size = sum(map(len, parts))
    with pytest.raises(ApiError) as caught:
        sdk.files_upload_session_finish(b"", files.UploadSessionCursor(session, size), commit)
    assert caught.value.error.is_concurrent_session_not_closed()
    sdk.files_upload_session_append_v2(parts[1], files.UploadSessionCursor(session, 4 * MIB), close=True)
    metadata = sdk.files_upload_session_finish(b"", files.UploadSessionCursor(session, size), commit)
    assert (metadata.size, metadata.content_hash) == (size, _hash(b"".join(parts)))


@pytest.mark.filterwarnings("ignore:upload_session/.* is deprecated")
def test_finish_batch(sdk: dropbox.Dropbox) -> None:
    sessions = sdk.files_upload_session_start_batch(2).session_ids
    for session in sessions:
        sdk.files_upload_session_append_v2(b"data", files.UploadSessionCursor(session, 0), close=True)
    entries = [
        files.UploadSessionFinishArg(files.UploadSessionCursor(session, 4), files.CommitInfo(f"/{number}.bin"))
        for number, session in enumerate([*sessions, "nobody's"])
    ]
    result = sdk.files_upload_session_finish_batch_v2(entries)
    assert [entry.is_success() for entry in result.entries] == [True, True, False]
    assert result.entries[2].get_failure().get_lookup_failed().is_not_found()
    session = sdk.files_upload_session_start(b"data", close=True).session_id
    entry = files.UploadSessionFinishArg(files.UploadSessionCursor(session, 4), files.CommitInfo("/old.bin"))
    job = sdk.files_upload_session_finish_batch([entry]).get_async_job_id()
    assert sdk.files_upload_session_finish_batch_check(job).get_complete().entries[0].get_success().size == 4


def test_batches(sdk: dropbox.Dropbox) -> None:
    folders = sdk.files_create_folder_batch(["/b1", "/b2", "/b1"]).get_complete()
    assert [entry.is_success() for entry in folders.entries] == [True, True, False]
    job = sdk.files_create_folder_batch(["/b3"], force_async=True).get_async_job_id()
    assert sdk.files_create_folder_batch_check(job).is_complete()
    with pytest.raises(ApiError) as caught:
        sdk.files_delete_batch_check(job)
    assert caught.value.error.is_invalid_async_job_id()
    pairs = [files.RelocationPath("/b1", "/c1"), files.RelocationPath("/none", "/c2")]
    copied = sdk.files_copy_batch_check_v2(sdk.files_copy_batch_v2(pairs).get_async_job_id()).get_complete()
    assert [entry.is_success() for entry in copied.entries] == [True, False]
    moves = [files.RelocationPath("/c1", "/m1")]
    moved = sdk.files_move_batch_check_v2(sdk.files_move_batch_v2(moves).get_async_job_id()).get_complete()
    assert moved.entries[0].get_success().path_display == "/m1"
    deletes = [files.DeleteArg("/b1"), files.DeleteArg("/b1")]
    deleted = sdk.files_delete_batch_check(sdk.files_delete_batch(deletes).get_async_job_id()).get_complete()
    assert [entry.is_success() for entry in deleted.entries] == [True, False]


def test_shared_links(sdk: dropbox.Dropbox) -> None:
    sdk.files_upload(b"x", "/folder/a b.txt")
    link = sdk.sharing_create_shared_link_with_settings("/folder/a b.txt")
    with pytest.raises(ApiError) as caught:
        sdk.sharing_create_shared_link_with_settings("/folder/a b.txt")
    again = caught.value.error.get_shared_link_already_exists()
    assert again.get_metadata().url == link.url
    folder = sdk.sharing_create_shared_link_with_settings("/folder")
    assert isinstance(folder, sharing.FolderLinkMetadata)
    assert {entry.url for entry in sdk.sharing_list_shared_links().links} == {link.url, folder.url}
    listed = sdk.sharing_list_shared_links("/folder/a b.txt", direct_only=True).links
    assert [entry.url for entry in listed] == [link.url]
    assert len(sdk.sharing_list_shared_links("/folder/a b.txt").links) == 2
    assert sdk.sharing_get_shared_link_metadata(link.url.replace("dl=0", "dl=1")).name == "a b.txt"
    assert sdk.sharing_get_shared_link_file(folder.url, path="/a b.txt")[1].content == b"x"
    sdk.sharing_revoke_shared_link(link.url)
    with pytest.raises(ApiError) as caught:
        sdk.sharing_get_shared_link_metadata(link.url)
    assert caught.value.error.is_shared_link_not_found()
    with pytest.raises(ApiError) as caught:
        sdk.sharing_revoke_shared_link(link.url)
    assert caught.value.error.is_shared_link_not_found()


def test_link_shows_a_new_version_when_reads_see_it(sdk: dropbox.Dropbox, emulator: EmulatorService, wire: Any) -> None:
    old = sdk.files_upload(b"old", "/a.txt")
    link = sdk.sharing_create_shared_link_with_settings("/a.txt")
    emulator.control(set={"readiness.delay_s": 3600.0})
    sdk.files_upload(b"newer", "/a.txt", mode=files.WriteMode.overwrite)
    parts = urlsplit(link.url.replace("dl=0", "dl=1"))
    assert wire.request("GET", f"{parts.path}?{parts.query}", b"", {}).value == b"old"
    metadata, answer = sdk.sharing_get_shared_link_file(link.url)
    assert (answer.content, metadata.rev, metadata.size) == (b"old", old.rev, 3)
    assert sdk.sharing_get_shared_link_metadata(link.url).rev == old.rev


def test_link_with_password(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    sdk.files_upload(b"x", "/a.txt")
    settings = sharing.SharedLinkSettings(
        requested_visibility=sharing.RequestedVisibility.password, link_password="secret"
    )
    emulator.control(set={"account.type": "basic"})
    with pytest.raises(ApiError) as caught:
        sdk.sharing_create_shared_link_with_settings("/a.txt", settings)
    assert caught.value.error.get_settings_error().is_not_authorized()
    emulator.control(set={"account.type": "business"})
    link = sdk.sharing_create_shared_link_with_settings("/a.txt", settings)
    assert sdk.sharing_get_shared_link_metadata(link.url, link_password="secret").name == "a.txt"
    with pytest.raises(ApiError) as caught:
        sdk.sharing_get_shared_link_metadata(link.url, link_password="wrong")
    assert caught.value.error.is_shared_link_access_denied()


def test_link_keeps_its_password_when_other_settings_change(
    sdk: dropbox.Dropbox, emulator: EmulatorService, wire: Any
) -> None:
    emulator.control(set={"account.type": "business"})
    sdk.files_upload(b"secret", "/a.txt")
    protected = sharing.SharedLinkSettings(require_password=True, link_password="word")
    url = sdk.sharing_create_shared_link_with_settings("/a.txt", protected).url
    parts = urlsplit(url.replace("dl=0", "dl=1"))
    for settings in (sharing.SharedLinkSettings(expires=datetime(2099, 1, 1)), sharing.SharedLinkSettings()):
        link = sdk.sharing_modify_shared_link_settings(url, settings)
        assert link.link_permissions.resolved_visibility.is_password()
        with pytest.raises(ApiError) as caught:
            sdk.sharing_get_shared_link_metadata(url, link_password="wrong")
        assert caught.value.error.is_shared_link_access_denied()
        assert wire.request("GET", f"{parts.path}?{parts.query}", b"", {}).status == 403
    link = sdk.sharing_modify_shared_link_settings(url, sharing.SharedLinkSettings(require_password=False))
    assert link.link_permissions.resolved_visibility.is_public()
    assert wire.request("GET", f"{parts.path}?{parts.query}", b"", {}).value == b"secret"


def test_link_for_a_team_stays_so_when_other_settings_change(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    emulator.control(set={"account.type": "business"})
    sdk.files_upload(b"x", "/a.txt")
    team = sharing.SharedLinkSettings(audience=sharing.LinkAudience.team)
    url = sdk.sharing_create_shared_link_with_settings("/a.txt", team).url
    for settings in (
        sharing.SharedLinkSettings(allow_download=False), sharing.SharedLinkSettings(require_password=False)
    ):  # fmt: skip
        link = sdk.sharing_modify_shared_link_settings(url, settings)
        assert link.link_permissions.resolved_visibility.is_team_only()


def test_account_and_space(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    account = sdk.users_get_current_account()
    assert account.account_type.is_business()
    assert sdk.users_get_account(account.account_id).name == account.name
    assert len(sdk.users_get_account_batch([account.account_id] * 2)) == 2
    with pytest.raises(ApiError) as caught:
        sdk.users_get_account("x" * 40)
    assert caught.value.error.is_no_account()
    with pytest.raises(ApiError) as caught:
        sdk.users_get_account_batch(["x" * 40])
    assert caught.value.error.get_no_account() == "x" * 40
    assert sdk.users_get_space_usage().allocation.get_team().allocated > 0
    emulator.control(set={"account.type": "basic", "quota.bytes": 1000})
    assert sdk.users_get_current_account().team is None
    sdk.files_upload(b"x" * 600, "/a.bin")
    usage = sdk.users_get_space_usage()
    assert (usage.used, usage.allocation.get_individual().allocated) == (600, 1000)
    assert sdk.check_user("echo").result == "echo"
    assert sdk.check_app("echo").result == "echo"


def test_paths_may_begin_at_a_namespace(sdk: dropbox.Dropbox) -> None:
    own = sdk.users_get_current_account().root_info.root_namespace_id
    sdk.files_upload(b"x", "/a.bin")
    rooted = sdk.with_path_root(common.PathRoot.root(own))
    rooted._host_map = sdk._host_map
    assert rooted.files_get_metadata("/a.bin").name == "a.bin"
    assert sdk.files_get_metadata(f"ns:{own}/a.bin").name == "a.bin"
    with pytest.raises(ApiError) as caught:
        sdk.files_get_metadata("ns:1/a.bin")
    assert caught.value.error.get_path().is_not_found()


def test_tokens_expire_and_are_refreshed(emulator: EmulatorService) -> None:
    session = dropbox.create_session(ca_certs=emulator.endpoint.ca_file)
    session.trust_env = False
    client = dropbox.Dropbox(
        oauth2_refresh_token="a-refresh-token", app_key="key", session=session, max_retries_on_error=0
    )
    client._host_map = {role: urlsplit(url).netloc for role, url in emulator.endpoint.urls.items()}
    client.refresh_access_token(host=client._host_map["api"])
    first = client._oauth2_access_token
    assert client.users_get_current_account().disabled is False
    client.refresh_access_token(host=client._host_map["api"])
    assert client._oauth2_access_token != first
    client.auth_token_revoke()
    client._oauth2_refresh_token = None
    with pytest.raises(AuthError) as caught:
        client.users_get_current_account()
    assert caught.value.error.is_invalid_access_token()
    emulator.control(set={"account.token_lifetime_s": 0})
    client._oauth2_refresh_token = "another"
    client.refresh_access_token(host=client._host_map["api"])
    client._oauth2_refresh_token = None
    client._oauth2_access_token_expiration = None
    with pytest.raises(AuthError) as caught:
        client.users_get_current_account()
    assert caught.value.error.is_expired_access_token()
    client._oauth2_refresh_token = "invalid-token"
    with pytest.raises(AuthError):
        client.refresh_access_token(host=client._host_map["api"])
    client.close()


def test_throttled_upload_names_its_waiting_time(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    emulator.control(set={"throttle.rate_per_s": 0.001, "throttle.burst": 2, "throttle.retry_after_s": 7})
    sdk.files_upload(b"x", "/1.bin")
    sdk.files_upload(b"x", "/2.bin")
    with pytest.raises(RateLimitError) as caught:
        sdk.files_upload(b"x", "/3.bin")
    assert caught.value.backoff == 7
    assert caught.value.error.reason.is_too_many_write_operations()
    assert len(sdk.files_list_folder("").entries) == 2
