"""Routing, authentication and errors of Google Drive's API v3, after its published discovery document and guides.

The functions of the API are in the modules beside this one. No module of the emulator imports a driver or Google's
library, because a bug that both sides shared would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_cloudbench.emulators.accounts import LetsMembersIn
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.gdrive import changes, comments, files, revisions, shared_drives, sharing, uploads
from pytest_cloudbench.emulators.gdrive.account import DIALECT, revoke_token
from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_page
from pytest_cloudbench.emulators.gdrive.metadata import EXPORT_PATHS
from pytest_cloudbench.emulators.gdrive.requests import query_params, read_body, read_spaces
from pytest_cloudbench.emulators.gdrive.scopes import check_scopes, find_missing_feature
from pytest_cloudbench.emulators.gdrive.state import DriveState
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal

_Function = Callable[[DriveState, Call], Answer]
_DRIVE = "/drive/v3"
_FILE, _COMMENT = "/files/{id}", "/files/{id}/comments/{comment}"
_FUNCTIONS: Mapping[str, tuple[Kind, str, str, _Function]] = {
    "about.get": (Kind.META, "GET", "/about", changes.get_about),
    "changes.getStartPageToken": (Kind.META, "GET", "/changes/startPageToken", changes.get_start_page_token),
    "changes.list": (Kind.META, "GET", "/changes", changes.list_changes),
    "files.list": (Kind.META, "GET", "/files", files.list_files),
    "files.create": (Kind.WRITE, "POST", "/files", files.create_file),
    "files.generateIds": (Kind.META, "GET", "/files/generateIds", files.generate_ids),
    "files.emptyTrash": (Kind.WRITE, "DELETE", "/files/trash", files.empty_trash),
    "files.get": (Kind.META, "GET", _FILE, files.get_file),
    "files.update": (Kind.WRITE, "PATCH", _FILE, files.update_file),
    "files.delete": (Kind.WRITE, "DELETE", _FILE, files.delete_file),
    "files.copy": (Kind.WRITE, "POST", f"{_FILE}/copy", files.copy_file),
    "files.export": (Kind.READ, "GET", f"{_FILE}/export", files.export_file),
    "permissions.list": (Kind.META, "GET", f"{_FILE}/permissions", sharing.list_permissions),
    "permissions.create": (Kind.WRITE, "POST", f"{_FILE}/permissions", sharing.create_permission),
    "permissions.get": (Kind.META, "GET", _FILE + "/permissions/{permission}", sharing.get_permission),
    "permissions.update": (Kind.WRITE, "PATCH", _FILE + "/permissions/{permission}", sharing.update_permission),
    "permissions.delete": (Kind.WRITE, "DELETE", _FILE + "/permissions/{permission}", sharing.delete_permission),
    "revisions.list": (Kind.META, "GET", f"{_FILE}/revisions", revisions.list_revisions),
    "revisions.get": (Kind.META, "GET", _FILE + "/revisions/{revision}", revisions.get_revision),
    "revisions.update": (Kind.WRITE, "PATCH", _FILE + "/revisions/{revision}", revisions.update_revision),
    "revisions.delete": (Kind.WRITE, "DELETE", _FILE + "/revisions/{revision}", revisions.delete_revision),
    "comments.list": (Kind.META, "GET", f"{_FILE}/comments", comments.list_comments),
    "comments.create": (Kind.WRITE, "POST", f"{_FILE}/comments", comments.create_comment),
    "comments.get": (Kind.META, "GET", _COMMENT, comments.get_comment),
    "comments.update": (Kind.WRITE, "PATCH", _COMMENT, comments.update_comment),
    "comments.delete": (Kind.WRITE, "DELETE", _COMMENT, comments.delete_comment),
    "replies.list": (Kind.META, "GET", f"{_COMMENT}/replies", comments.list_replies),
    "replies.create": (Kind.WRITE, "POST", f"{_COMMENT}/replies", comments.create_reply),
    "replies.get": (Kind.META, "GET", _COMMENT + "/replies/{reply}", comments.get_reply),
    "replies.update": (Kind.WRITE, "PATCH", _COMMENT + "/replies/{reply}", comments.update_reply),
    "replies.delete": (Kind.WRITE, "DELETE", _COMMENT + "/replies/{reply}", comments.delete_reply),
    "drives.list": (Kind.META, "GET", "/drives", shared_drives.list_drives),
    "drives.create": (Kind.WRITE, "POST", "/drives", shared_drives.create_drive),
    "drives.get": (Kind.META, "GET", "/drives/{drive}", shared_drives.get_drive),
    "drives.update": (Kind.WRITE, "PATCH", "/drives/{drive}", shared_drives.update_drive),
    "drives.hide": (Kind.WRITE, "POST", "/drives/{drive}/hide", shared_drives.hide_drive),
    "drives.unhide": (Kind.WRITE, "POST", "/drives/{drive}/unhide", shared_drives.unhide_drive),
    "drives.delete": (Kind.WRITE, "DELETE", "/drives/{drive}", shared_drives.delete_drive),
}
_BY_SPACE = frozenset({"files.list", "changes.list"})
_THROTTLED: Mapping[str, tuple[int, str]] = {
    "userRateLimitExceeded": (403, "User Rate Limit Exceeded"),
    "rateLimitExceeded": (429, "Rate Limit Exceeded"),
}


class GoogleDrive:
    """The skin of Google Drive, as described by ``skin.Skin``."""

    roles = ("api", "oauth", "web")
    host_names = (
        "www.googleapis.com",
        "oauth2.googleapis.com",
        "accounts.google.com",
        "drive.google.com",
        "docs.google.com",
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        self.state, self._clock = DriveState(profile, seed), clock
        self.find_member: Callable[[bytes, Mapping[bytes, bytes]], LetsMembersIn | None] = lambda query, headers: None
        oauth = self.state.oauth = OAuth(DIALECT, self.state.tokens.next, lambda: self.state.account.token_lifetime_s)
        access_token = self.state.tokens.next("ya29.emulated-", 64)
        self.credentials = {"access_token": access_token}
        oauth.add_token(access_token)
        token = Route("oauth.token", Kind.FREE, oauth.token)
        authorize = Route("oauth.authorize", Kind.FREE, oauth.authorize)
        revoke_route = Route("oauth.revoke", Kind.FREE, lambda call: revoke_token(oauth, call))
        export = self._make_route("export", Kind.READ, files.follow_export_link)
        self._content = self._make_route("files.get media", Kind.READ, files.get_file)
        self._override = self._make_route("override", Kind.WRITE, lambda _, call: self.unknown(call.method, call.path))
        self._session_routes = {
            "upload": self._make_route("upload.begin", Kind.META, uploads.upload_new_file),
            "upload update": self._make_route("upload.begin update", Kind.META, uploads.upload_content),
        }
        self._routes = RouteTable(
            [
                *(
                    (method, _DRIVE + path, self._make_route(name, kind, function))
                    for name, (kind, method, path, function) in _FUNCTIONS.items()
                ),
                *(("GET", path, export) for path in EXPORT_PATHS.values()),
                *self._upload_routes(f"/upload{_DRIVE}/files"),
                *self._upload_routes(f"/resumable/upload{_DRIVE}/files"),
                ("POST", "/token", token),
                ("POST", "/oauth2/v4/token", token),
                ("GET", "/o/oauth2/auth", authorize),
                ("GET", "/o/oauth2/v2/auth", authorize),
                ("POST", "/revoke", revoke_route),
                ("GET", "/uc", Route("public", Kind.READ, lambda call: sharing.get_public_content(self.state, call))),
            ]
        )

    def _upload_routes(self, path: str) -> list[tuple[str, str, Route]]:
        """Return the routes of uploads. Pieces of a session come by PUT or POST, and need no token."""
        sink = uploads.sink_factory(self.state)
        create = self._make_route("upload", Kind.WRITE, uploads.upload_new_file)
        create = replace(create, sink=sink, denied=self._refuse_upload)
        update = self._make_route("upload update", Kind.WRITE, uploads.upload_content)
        update = replace(update, sink=sink, denied=self._refuse_upload)
        cancel = self._make_route("upload.cancel", Kind.META, uploads.cancel_upload)
        cancel = replace(cancel, denied=self._refuse_upload)
        one_file = path + "/{id}"
        return [
            ("POST", path, create), ("PUT", path, create), ("DELETE", path, cancel),
            ("PATCH", one_file, update), ("PUT", one_file, update), ("POST", one_file, update),
            ("DELETE", one_file, cancel),
        ]  # fmt: skip

    @property
    def store(self) -> NodeStore:
        """The account's files."""
        return self.state.store

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        self.state.configure(profile)

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Return the route of a request. The query tells whether it reads content, and whether it begins a session."""
        match = self._routes.find(method, path)
        if match is None and method == "POST" and self._routes.methods(path):  # a header may name another method
            return Match(self._override, {})
        if match is None or not query:
            return match
        name = match.route.name
        if name == "files.get" and b"alt=media" in query:
            return Match(self._content, match.parameters)
        if name in self._session_routes and b"uploadType=resumable" in query and b"upload_id=" not in query:
            return Match(self._session_routes[name], match.parameters)
        return match

    def recognises(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account, or is for its upload sessions and public files."""
        params = parse_form(query)
        if header := headers.get(b"authorization") or params.get("access_token", "").encode():
            tokens = self.state.oauth.tokens
            return header in tokens or b"Bearer " + header in tokens
        is_public = path == "/uc" and self.store.by_id(params.get("id", "")) is not None
        return is_public or params.get("upload_id", "") in self.state.sessions

    def authorizes(self, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account that has not ended."""
        header = _read_header(query, headers)
        return header is not None and self.state.oauth.is_valid(header, self._clock.now_s())

    def admits(self, path: str, headers: Mapping[bytes, bytes], address: str) -> bool:
        """Return whether a path is that of a file that the account with this address may use."""
        return bool(sharing.find_role(self.state, path, address, self._clock.now_s()))

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Answer with status 403 or 429, depending on the reason."""
        status, message = _THROTTLED[refusal.reason]
        wait = [(b"retry-after", b"%d" % refusal.retry_after_s)] if refusal.retry_after_s else []
        return DriveError(status, refusal.reason, message, domain="usageLimits", headers=wait).answer()

    def broken(self, call: Call) -> Answer:
        """Answer with status 500."""
        return DriveError(500, "backendError", "Backend Error").answer()

    def unknown(self, method: str, path: str) -> Answer:
        """Answer that there is no such function, which is also the answer to a wrong method."""
        if missing := find_missing_feature(path):
            return DriveError(400, "badRequest", f"This emulator does not offer {missing}.").answer()
        return answer_page(404, f"The requested URL {path} was not found on this server.")

    # ---------------------------------------------------------------- one request

    def _make_route(self, name: str, kind: Kind, function: _Function) -> Route:
        def handler(call: Call) -> Answer:
            try:
                if _is_overridden(call):
                    return self._handle_override(call)
                if name in sharing.READS_BODY and (member := self._find_other(call)) is not None:
                    sharing.check_member(self.state, call, member.state.address)
                return function(self.state, call)
            except DriveError as error:
                return error.answer()

        return Route(name, kind, handler, denied=self._refuse_unauthorized)

    def _handle_override(self, call: Call) -> Answer:
        """Answer a request that has its method in a header and, for GET, its long query in the body."""
        method = call.headers[b"x-http-method-override"].decode("latin-1").upper()
        query = read_body(call) if method == "GET" else call.query
        match = self.route(method, call.path, query)
        if match is None or method == "POST":
            return self.unknown(method, call.path)
        call = replace(call, method=method, query=query, parameters=match.parameters, route=match.route)
        refusal = match.route.denied(call) if match.route.denied is not None else None
        answer = refusal or match.route.handler(call)
        assert isinstance(answer, Answer)
        return answer

    def refuse_by_scope(self, call: Call) -> Answer | None:
        """Return the refusal of a call that its token's scopes do not allow, or None."""
        scopes = self.state.oauth.scopes.get(_read_header(call.query, call.headers) or b"")
        if scopes is None:  # a token without scopes, which allows everything
            return None
        try:
            spaces = read_spaces(query_params(call)) if call.route.name in _BY_SPACE else ()
            check_scopes(call.route.name, call.route.kind, scopes, spaces)
        except DriveError as error:
            return error.answer()
        return None

    def _find_other(self, call: Call) -> LetsMembersIn | None:
        """Return the account that sent a call, or None if it is this one, or if the call has no valid token."""
        header = _read_header(call.query, call.headers)
        return None if header in self.state.oauth.tokens else self.find_member(call.query, call.headers)

    def _refuse_upload(self, call: Call) -> Answer | None:
        """Like ``_refuse_unauthorized``, but pieces of a session need nothing beyond its address."""
        return None if b"upload_id=" in call.query else self._refuse_unauthorized(call)

    def _refuse_unauthorized(self, call: Call) -> Answer | None:
        """Return the refusal of a request that is not authorized, or None if it is allowed.

        A request with its method in a header is refused once its query is known, which may be its body.
        """
        if _is_overridden(call):
            return None
        header = _read_header(call.query, call.headers)
        expires_s = self.state.oauth.tokens.get(header) if header is not None else None
        if expires_s is not None and expires_s > call.now_s:
            if call.headers.get(b"if-match", b"*") != b"*":
                return DriveError(412, "conditionNotMet", "Precondition Failed", "If-Match", "header").answer()
            return self.refuse_by_scope(call)
        if expires_s is None and (member := self._find_other(call)) is not None:
            return member.refuse_by_scope(call) or sharing.refuse_member(self.state, call, member.state.address)
        challenge, reason, message = b'Bearer realm="https://accounts.google.com/"', "required", "Login Required."
        if header is not None:
            challenge += b', error="invalid_token"'
            reason, message = "authError", "Invalid Credentials"
        headers = [(b"www-authenticate", challenge)]
        return DriveError(401, reason, message, "Authorization", "header", headers=headers).answer()


def _is_overridden(call: Call) -> bool:
    """Return whether a request has its method in a header, as Google's libraries send it where they must use POST."""
    return call.method == "POST" and b"x-http-method-override" in call.headers


def _read_header(query: bytes, headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the ``Authorization`` header of a request, made from the query if that has the token, or None."""
    header = headers.get(b"authorization")
    if header is None and b"access_token=" in query:
        return b"Bearer " + parse_form(query).get("access_token", "").encode()
    return header
