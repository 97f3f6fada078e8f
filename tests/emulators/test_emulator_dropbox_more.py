"""Tests of Dropbox functions that storage drivers do not use: links, search, archives, addresses, shared folders.

They use the official SDK and the raw client, whose answers are strictly decoded.
"""

from __future__ import annotations

import http.server
import io
import json
import ssl
import threading
import zipfile
from collections.abc import Iterator
from datetime import datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import dropbox
import pytest
from dropbox import files, users
from dropbox.exceptions import ApiError

from pytest_cloudbench.emulators import EmulatorService
from tests.limits import HANG_S

Wire = Any


def fetch(emulator: EmulatorService, url: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
    """Request a link without a token, and return status, headers and body."""
    parts = urlsplit(url)
    context = ssl.create_default_context(cafile=emulator.endpoint.ca_file)
    connection = HTTPSConnection(parts.hostname or "", parts.port, context=context, timeout=HANG_S)
    try:
        connection.request("GET" if body is None else "POST", parts.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


# --- links ---


def test_a_temporary_link_needs_no_token_and_ends(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    metadata = sdk.files_upload(b"0123456789", "/a b.txt")
    result = sdk.files_get_temporary_link("/a b.txt")
    assert result.metadata.rev == metadata.rev
    assert fetch(emulator, result.link)[::2] == (200, b"0123456789")
    assert fetch(emulator, result.link, Range="bytes=3-5")[::2] == (206, b"345")
    assert fetch(emulator, result.link, Range="bytes=50-")[0] == 416
    sdk.files_delete_v2("/a b.txt")
    assert fetch(emulator, result.link)[0] == 404
    assert fetch(emulator, result.link.replace("/get/", "/get/x"))[0] == 404
    with pytest.raises(ApiError) as caught:
        sdk.files_get_temporary_link("/a b.txt")
    assert caught.value.error.get_path().is_not_found()


def test_a_temporary_link_leads_to_the_name_that_was_asked(wire: Wire, emulator: EmulatorService) -> None:
    wire("files/upload", {"path": "/a"}, b"x")
    by_name = {"Host": "api.dropboxapi.com"}
    link = wire("files/get_temporary_link", {"path": "/a"}, headers=by_name).value["link"]
    assert link.startswith("https://uc-emulated.dl.dropboxusercontent.com/cd/0/get/")
    upload = {"commit_info": {"path": "/b"}, "duration": 60.0}
    link = wire("files/get_temporary_upload_link", upload, headers=by_name).value["link"]
    assert link.startswith("https://content.dropboxapi.com/apitul/1/")
    assert wire("files/get_temporary_upload_link", {**upload, "duration": 59}).status == 400


def test_an_upload_link_works_once(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    commit = files.CommitInfo("/up.txt", mode=files.WriteMode.add)
    link = sdk.files_get_temporary_upload_link(commit).link
    binary = {"Content-Type": "application/octet-stream"}
    assert fetch(emulator, link, b"abc", **{"Content-Type": "image/png"})[0] == 400
    status, _, body = fetch(emulator, link, b"abc", **binary)
    assert (status, json.loads(body)) == (200, {"content-hash": sdk.files_get_metadata("/up.txt").content_hash})
    assert fetch(emulator, link, b"abc", **binary)[0] == 410
    again = sdk.files_get_temporary_upload_link(commit).link
    assert fetch(emulator, again, b"other", **binary)[0] == 409
    assert fetch(emulator, f"{again}x", b"other", **binary)[0] == 409


def test_links_end_after_their_hours(connect: Any, tmp_path: Path) -> None:
    from pytest_cloudbench.emulators import start_emulator

    with start_emulator("ideal", time_scale=100_000) as running:
        wire = connect(running)
        wire("files/upload", {"path": "/a"}, b"x")
        link = wire("files/get_temporary_link", {"path": "/a"}).value["link"]
        for _ in range(2000):
            status = fetch(running, link)[0]
            if status != 200:
                break
        assert status == 410


def test_a_temporary_link_of_a_revision_gives_its_content(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    old = sdk.files_upload(b"old", "/a.txt")
    sdk.files_upload(b"newer", "/a.txt", mode=files.WriteMode.overwrite)
    result = sdk.files_get_temporary_link(f"rev:{old.rev}")
    assert (result.metadata.rev, fetch(emulator, result.link)[2]) == (old.rev, b"old")


@pytest.mark.parametrize("later", ["overwritten", "moved", "deleted"])
def test_copy_reference_to_a_revision_saves_its_content(sdk: dropbox.Dropbox, later: str) -> None:
    old = sdk.files_upload(b"old", "/a.txt", client_modified=datetime(2020, 1, 2))
    sdk.files_upload(b"newer", "/a.txt", mode=files.WriteMode.overwrite)
    result = sdk.files_copy_reference_get(f"rev:{old.rev}")
    assert result.metadata.rev == old.rev
    if later == "moved":
        sdk.files_move_v2("/a.txt", "/b.txt")
    elif later == "deleted":
        sdk.files_delete_v2("/a.txt")
    copy = sdk.files_copy_reference_save(result.copy_reference, "/folder/copy.txt").metadata
    assert sdk.files_download("/folder/copy.txt")[1].content == b"old"
    assert (copy.content_hash, copy.client_modified) == (old.content_hash, old.client_modified)
    assert (copy.id != old.id, copy.rev != old.rev) == (True, True)
    assert sdk.files_download(f"rev:{copy.rev}")[0].path_display == "/folder/copy.txt"


def test_copy_reference_to_a_revision_is_refused_where_a_file_is_or_when_it_is_gone(sdk: dropbox.Dropbox) -> None:
    old = sdk.files_upload(b"old", "/a.txt")
    sdk.files_upload(b"newer", "/a.txt", mode=files.WriteMode.overwrite)
    reference = sdk.files_copy_reference_get(f"rev:{old.rev}").copy_reference
    with pytest.raises(ApiError) as caught:
        sdk.files_copy_reference_save(reference, "/a.txt")
    assert caught.value.error.get_path().get_conflict().is_file()
    sdk.files_permanently_delete("/a.txt")
    with pytest.raises(ApiError) as caught:
        sdk.files_copy_reference_save(reference, "/b.txt")
    assert caught.value.error.is_not_found()


# --- search ---


def test_search_by_words_in_pages(sdk: dropbox.Dropbox) -> None:
    for number in range(5):
        sdk.files_upload(b"x", f"/Reports/Report {number}.txt")
    sdk.files_upload(b"x", "/other/report.pdf")
    sdk.files_upload(b"x", "/gone report.txt")
    sdk.files_delete_v2("/gone report.txt")

    def names(**options: Any) -> list[str]:
        page = sdk.files_search_v2("REPORT", options=files.SearchOptions(**options), include_highlights=True)
        matches = list(page.matches)
        while page.has_more:
            page = sdk.files_search_continue_v2(page.cursor)
            matches += page.matches
        return [match.metadata.get_metadata().path_display for match in matches]

    reports = [f"/Reports/Report {number}.txt" for number in range(5)]
    assert names() == ["/other/report.pdf", "/Reports", *reports]
    assert names(max_results=2) == names()
    assert names(path="/Reports", max_results=3) == reports
    assert names(file_extensions=["pdf"]) == names(file_categories=[files.FileCategory.pdf]) == ["/other/report.pdf"]
    assert names(file_categories=[files.FileCategory.folder]) == ["/Reports"]
    assert names(file_status=files.FileStatus.deleted) == ["/gone report.txt"]
    assert sdk.files_search_v2("nothing of that").matches == []
    with pytest.raises(ApiError) as caught:
        sdk.files_search_v2("x", options=files.SearchOptions(path="/nowhere"))
    assert caught.value.error.get_path().is_not_found()


def test_a_foreign_search_cursor_is_refused(wire: Wire) -> None:
    assert wire("files/search/continue_v2", {"cursor": "xyz"}).status == 400


# --- archives and addresses ---


def test_a_folder_as_one_zip_file(sdk: dropbox.Dropbox) -> None:
    sdk.files_upload(b"one", "/folder/ünï.txt")
    sdk.files_upload(b"two", "/folder/below/b.bin")
    sdk.files_create_folder_v2("/folder/empty")
    result, response = sdk.files_download_zip("/folder")
    assert result.metadata.path_display == "/folder"
    archive = zipfile.ZipFile(io.BytesIO(response.content))
    assert archive.read("folder/ünï.txt") == b"one"
    assert sorted(archive.namelist()) == [
        "folder/", "folder/below/", "folder/below/b.bin", "folder/empty/", "folder/ünï.txt"
    ]  # fmt: skip
    with pytest.raises(ApiError) as caught:
        sdk.files_download_zip("/folder/ünï.txt")
    assert caught.value.error.get_path().is_not_folder()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The URL of a web server on loopback."""
    (tmp_path / "page.txt").write_bytes(b"from the web")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def save_url(sdk: dropbox.Dropbox, path: str, url: str) -> Any:
    job = sdk.files_save_url(path, url).get_async_job_id()
    while (status := sdk.files_save_url_check_job_status(job)).is_in_progress():
        pass
    return status


def test_an_address_on_loopback_is_saved(sdk: dropbox.Dropbox, site: str, emulator: EmulatorService) -> None:
    assert save_url(sdk, "/page.txt", f"{site}/page.txt").get_complete().size == 12
    assert sdk.files_download("/page.txt")[1].content == b"from the web"
    assert save_url(sdk, "/page.txt", f"{site}/page.txt".replace("127.0.0.1", "localhost")).get_complete().size == 12
    assert save_url(sdk, "/page.txt", f"{site}/nowhere").get_failed().is_not_found()
    own = sdk.files_get_temporary_link("/page.txt").link
    assert save_url(sdk, "/own.txt", own).get_complete().name == "own.txt"


@pytest.mark.parametrize(
    "url", ["http://example.com/x", "https://192.0.2.1/", "http://localhost.example.com/", "http://[2001:db8::1]/"]
)
def test_save_url_refuses_addresses_off_the_machine(sdk: dropbox.Dropbox, url: str) -> None:
    assert save_url(sdk, "/x", url).get_failed().is_download_failed()
    assert sdk.files_list_folder("").entries == []


def test_save_url_refuses_invalid_addresses(sdk: dropbox.Dropbox) -> None:
    for url in ("ftp://127.0.0.1/x", "nothing", "http://[", "file:///etc/passwd"):
        with pytest.raises(ApiError) as caught:
            sdk.files_save_url("/x", url)
        assert caught.value.error.is_invalid_url()
    with pytest.raises(ApiError) as caught:
        sdk.files_save_url_check_job_status("dbjid:nobody")
    assert caught.value.error.is_invalid_async_job_id()


def test_a_redirect_is_not_followed(sdk: dropbox.Dropbox) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "http://example.com/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        assert save_url(sdk, "/x", url).get_failed().is_download_failed()
        thread.join()


# --- permanent deletion ---


def test_permanently_deleted_file_has_no_revisions(sdk: dropbox.Dropbox) -> None:
    metadata = sdk.files_upload(b"x", "/f/a.txt")
    sdk.files_delete_v2("/f/a.txt")
    sdk.files_permanently_delete("/f")
    with pytest.raises(ApiError):
        sdk.files_list_revisions("/f/a.txt")
    with pytest.raises(ApiError):
        sdk.files_restore("/f/a.txt", metadata.rev)
    with pytest.raises(ApiError) as caught:
        sdk.files_permanently_delete("/f")
    assert caught.value.error.get_path_lookup().is_not_found()
    assert sdk.files_list_folder("", include_deleted=True).entries == []


def test_revisions_of_a_file_that_was_moved_away_stay(sdk: dropbox.Dropbox) -> None:
    moved = sdk.files_upload(b"x", "/a/x.txt")
    sdk.files_upload(b"y", "/a/y.txt")
    sdk.files_move_v2("/a/x.txt", "/b/x.txt")
    sdk.files_permanently_delete("/a")
    assert sdk.files_download(f"rev:{moved.rev}")[1].content == b"x"


# --- shared folders ---


def test_shared_folders(sdk: dropbox.Dropbox, emulator: EmulatorService) -> None:
    sdk.files_upload(b"x", "/b/inside/file.txt")
    shared = sdk.sharing_share_folder("/b").get_complete()
    assert (shared.name, shared.path_lower, shared.policy.acl_update_policy.is_editors()) == ("b", "/b", True)
    new_job = sdk.sharing_share_folder("/A new one", force_async=True).get_async_job_id()
    assert sdk.sharing_check_share_job_status(new_job).get_complete().name == "A new one"
    page = sdk.sharing_list_folders(limit=1)
    assert [entry.name for entry in page.entries] == ["A new one"]
    page = sdk.sharing_list_folders_continue(page.cursor)
    assert ([entry.name for entry in page.entries], page.cursor) == (["b"], None)
    assert sdk.sharing_get_folder_metadata(shared.shared_folder_id).path_display == "/b"
    for path, why in (
        ("/b", "already_shared"),
        ("/b/inside", "inside_shared_folder"),
        ("/b/inside/file.txt", "is_file"),
    ):
        with pytest.raises(ApiError) as caught:
            sdk.sharing_share_folder(path)
        assert caught.value.error.get_bad_path()._tag == why
    job = sdk.sharing_unshare_folder(shared.shared_folder_id).get_async_job_id()
    assert sdk.sharing_check_job_status(job).is_complete()
    assert [entry.name for entry in sdk.sharing_list_folders().entries] == ["A new one"]
    with pytest.raises(ApiError) as caught:
        sdk.sharing_unshare_folder(shared.shared_folder_id)
    assert caught.value.error.get_access_error().is_invalid_id()
    with pytest.raises(ApiError) as caught:
        sdk.sharing_list_folders_continue("nothing")
    assert caught.value.error.is_invalid_cursor()


# --- accounts, tokens and paths ---


def test_features(sdk: dropbox.Dropbox) -> None:
    features = [users.UserFeature.file_locking, users.UserFeature.paper_as_files]
    values = sdk.users_features_get_values(features).values
    assert values[0].get_file_locking().get_enabled() is True
    assert values[1].is_paper_as_files()
    with pytest.raises(ApiError) as caught:
        sdk.users_features_get_values([])
    assert caught.value.error.is_empty_features_list()


def test_a_link_tells_when_it_was_made_and_for_whom(sdk: dropbox.Dropbox) -> None:
    metadata = sdk.files_upload(b"x", "/a.txt")
    link = sdk.sharing_create_shared_link_with_settings("/a.txt")
    assert link.created_timestamp >= metadata.server_modified
    options = link.link_permissions.audience_options
    assert [option.audience._tag for option in options if option.allowed] == ["public", "team", "no_one"]


def test_the_token_as_a_parameter_of_the_url(wire: Wire) -> None:
    def ask(value: str) -> Any:
        body, headers = b'{"path": ""}', {"Content-Type": "application/json"}
        return wire.request("POST", f"/2/files/list_folder?authorization={value}", body, headers, "files/list_folder")

    assert ask(quote(f"Bearer {wire.token}")).status == 200
    assert ask(quote("Bearer sl.nobody")).status == 401
    assert 'in URL parameter "authorization"' in ask("nothing").value


def test_a_path_with_two_slashes_is_a_folder_below_the_root(wire: Wire) -> None:
    wire("files/upload", {"path": "/r3/sub/a.txt"}, b"x")
    listed = wire("files/list_folder", {"path": "//r3", "recursive": True}).value["entries"]
    assert [entry["path_display"] for entry in listed] == ["/r3", "/r3/sub", "/r3/sub/a.txt"]
    assert wire("files/list_folder", {"path": "/r3//sub"}).status == 409
    assert wire("files/list_folder", {"path": "//"}).status == 409
