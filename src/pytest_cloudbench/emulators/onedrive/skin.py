"""Routing, authentication and errors of OneDrive in Microsoft Graph v1.0, after its published documents and metadata.

The functions are in the modules beside this one, each with its ``FUNCTIONS`` table. No module of the emulator imports a
driver, because a bug that both sides shared would go unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

from pytest_cloudbench.emulators.accounts import LetsMembersIn
from pytest_cloudbench.emulators.blob import BlobWriter, PieceWriter
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.nodes import Node, StoreError
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.onedrive import account, changes, files, legacy, sharing, uploads
from pytest_cloudbench.emulators.onedrive.address import GraphAddress, merge_slashes, parse_address
from pytest_cloudbench.emulators.onedrive.answers import (
    GRAPH,
    JSON_SPACED,
    GraphError,
    answer_error,
    answer_json,
    store_refusal,
    unsupported_feature,
)
from pytest_cloudbench.emulators.onedrive.items import describe_drive
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphRequest, GraphState
from pytest_cloudbench.emulators.onedrive.tree import GraphTree
from pytest_cloudbench.emulators.profile import Profile
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Call, Clock, Kind, Match, Route
from pytest_cloudbench.emulators.throttle import Refusal
from pytest_cloudbench.workload.payload.quickxor import QuickXor

_FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {
    **files.FUNCTIONS,
    **uploads.FUNCTIONS,
    **changes.FUNCTIONS,
    **sharing.FUNCTIONS,
}
_MISSING_FEATURES: Mapping[str, str] = {
    "$batch": "$batch",
    "activities": "activities",
    "analytics": "analytics",
    "assignSensitivityLabel": "labels",
    "bundles": "bundles",
    "checkin": "checking in and out",
    "checkout": "checking in and out",
    "discardCheckout": "checking in and out",
    "extractSensitivityLabels": "labels",
    "follow": "following",
    "following": "following",
    "getActivitiesByInterval": "analytics",
    "list": "lists",
    "listItem": "lists",
    "preview": "previews",
    "retentionLabel": "labels",
    "subscriptions": "subscriptions",
    "thumbnails": "thumbnails",
    "unfollow": "following",
    "workbook": "workbooks",
}
"""Features that Graph has and this emulator does not, by the part of the path that asks for them."""
_METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")


class _ParsedParameters(dict[str, str]):
    """The parameters of a call, which hold the parsed address."""

    __slots__ = ("address",)

    def __init__(self, address: GraphAddress) -> None:
        self.address = address


class OneDrive:
    """The skin of OneDrive, as described by ``skin.Skin``."""

    roles = ("api", "login")
    host_names = (
        "graph.microsoft.com",
        "login.microsoftonline.com",
        "login.live.com",
        "microsoft.com",
        "www.microsoft.com",
        "api.onedrive.com",
        "my.microsoftpersonalcontent.com",
        "1drv.ms",
        "*.sharepoint.com",
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        tokens = Tokens(seed)
        access_token, self._request_count = tokens.next("EwB", 120), 0
        self.credentials = {"access_token": access_token}
        key = blake2b(f"{seed}".encode(), digest_size=16)
        drive_id = f"b!{tokens.next('', 64)}" if profile.account.type != "personal" else key.hexdigest()[:16].upper()
        tree = GraphTree(seed + 1, clock.now_s(), drive_id)
        oauth = OAuth(account.DIALECT, tokens.next, lambda: self.state.account.token_lifetime_s)
        self.state = GraphState(
            tree, clock, profile.account, profile.jobs, drive_id, blake2b(key=key.digest(), digest_size=12), oauth
        )
        self.find_member: Callable[[bytes, Mapping[bytes, bytes]], LetsMembersIn | None] = lambda query, headers: None
        oauth.add_token(access_token)
        self.configure(profile)
        self._routes = {key: self._make_route(key, function) for key, function in _FUNCTIONS.items()}
        self._plain_routes = RouteTable([*self._login_routes(), *self._other_routes()])

    @property
    def store(self) -> NodeStore:
        """The account's files."""
        return self.state.tree.store

    def configure(self, profile: Profile) -> None:
        """Apply a changed profile."""
        self.state.tree.store.quota_bytes = profile.quota.bytes
        self.state.tree.store.readiness_s = profile.readiness.delay_s
        self.state.tree.store.list_delay_s = profile.readiness.list_delay_s
        self.state.tree.store.delete_delay_s = profile.readiness.delete_delay_s
        self.state.account = profile.account
        self.state.job_times = profile.jobs

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Return the route of a request: by its function for an address in a drive, and by its path for any other."""
        address = parse_address(path)
        if address is not None:
            name = address.function if address.base or address.function else "drive"
            route = self._routes.get((method, name))
            if route is not None:
                return Match(route, _ParsedParameters(address))
        return self._plain_routes.find(method, merge_slashes(path))

    def recognises(self, path: str, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account, or is for an address that this account issued."""
        if (header := headers.get(b"authorization")) is not None:
            return account.normalise_header(header) in self.state.oauth.tokens
        if b"tempauth=" in query:
            return self.state.verify_signature(parse_form(query).get("tempauth", "")) is not None
        return sharing.has_link(self.state, path) or path.rpartition("/")[2] in self.state.copies

    def authorizes(self, query: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request has a token of this account that has not ended."""
        header = account.normalise_header(headers.get(b"authorization", b""))
        return self.state.oauth.is_valid(header, self.state.clock.now_s())

    def admits(self, path: str, headers: Mapping[bytes, bytes], address: str) -> bool:
        """Return whether a path is that of an item that the account with this address may use."""
        return bool(sharing.find_roles(self.state, path, address))

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Answer with status 429 and the seconds to wait."""
        messages = {"activityLimitReached": "The app or user has been throttled."}
        message = messages.get(refusal.reason, "Too many requests")
        wait = (b"retry-after", b"%d" % refusal.retry_after_s)
        return self._answer_error(GraphError(429, refusal.reason, message, "throttledRequest", (wait,)), call)

    def broken(self, call: Call) -> Answer:
        """Answer with status 500."""
        return self._answer_error(GraphError(500, "generalException", "An unspecified error has occurred."), call)

    def unknown(self, method: str, path: str) -> Answer:
        """Answer that there is no such function, or that it does not accept the method."""
        path = merge_slashes(path)
        address, now_s = parse_address(path), self.state.clock.now_s()
        missing = [feature for segment, feature in _MISSING_FEATURES.items() if segment in _function_names(path)]
        if missing:
            error = unsupported_feature(missing[0])
        elif address is not None:
            name = address.function if address.base or address.function else "drive"
            if any((other, name) in _FUNCTIONS for other in _METHODS):
                error = GraphError(405, "invalidRequest", "The HTTP method is not allowed on this resource.")
            else:
                last = name.rpartition("/")[2]
                error = GraphError(400, "BadRequest", f"Resource not found for the segment '{last[:60]}'.")
        elif self._plain_routes.methods(path):
            error = GraphError(405, "invalidRequest", "The HTTP method is not allowed on this resource.")
        elif path.startswith(("/v1.0/", "/beta/")):
            segment = path.split("/")[2][:60]
            error = GraphError(400, "BadRequest", f"Resource not found for the segment '{segment}'.")
        else:
            error = GraphError(404, "ResourceNotFound", "The resource could not be found.")
        return answer_error(error, now_s, self._request_id())

    # ---------------------------------------------------------------- one request

    def _request_id(self) -> str:
        self._request_count += 1
        return f"00000000-0000-4000-8000-{self._request_count:012x}"

    def _answer_error(self, error: GraphError, call: Call) -> Answer:
        client_id = call.headers.get(b"client-request-id", b"").decode("latin-1")
        return answer_error(error, call.now_s, self._request_id(), client_id)

    def _make_route(self, key: tuple[str, str], function: GraphFunction) -> Route:
        """Return the route of a function, which turns its errors into Graph's answers."""
        method, name = key

        def handler(call: Call) -> Answer:
            self.state.jobs.advance(call.now_s)
            assert isinstance(call.parameters, _ParsedParameters)
            request = GraphRequest(self.state, call, call.parameters.address)
            try:
                self.state.require_drive(request.address)
                request.require_supported_options()
                answer = function.run(request)
                return legacy.reword_answer(request, answer) if legacy.is_legacy(request) else answer
            except GraphError as error:
                if error.status == 400 and "drive id" in error.message:
                    body = json.dumps({"error": {"code": error.code, "message": error.message}}).encode()
                    return Answer(400, [(b"content-type", JSON_SPACED)], body)
                return self._answer_error(error, call)
            except StoreError as error:
                return self._answer_error(store_refusal(error), call)

        sink = _content_sink if function.takes_content else None
        return Route(f"{method} {name or 'item'}", function.kind, handler, sink=sink, denied=self._refuse_unauthorized)

    def _refuse_unauthorized(self, call: Call) -> Answer | None:
        error = self._find_refusal(call)
        if error is None:
            return None
        header = account.normalise_header(call.headers.get(b"authorization", b""))
        member = None if header in self.state.oauth.tokens else self.find_member(call.query, call.headers)
        if member is None:
            return self._answer_error(error, call)
        if (refusal := member.refuse_by_scope(call)) is not None:
            return refusal
        error = sharing.refuse_member(self.state, call, member.state.address)
        return None if error is None else self._answer_error(error, call)

    def refuse_by_scope(self, call: Call) -> Answer | None:
        """Return the refusal of a call that its token and the token's scopes do not allow, or None."""
        error = self._find_refusal(call)
        return None if error is None else self._answer_error(error, call)

    def _find_refusal(self, call: Call) -> GraphError | None:
        address = call.parameters.address if isinstance(call.parameters, _ParsedParameters) else None
        return account.refuse_unauthorized(self.state, call, address)

    def _make_other_route(self, name: str, kind: Kind, run: Any, *, is_open: bool = False) -> Route:
        """Return a route outside the addresses of items. With ``is_open`` its requests need no token."""

        def handler(call: Call) -> Answer:
            self.state.jobs.advance(call.now_s)
            try:
                answer: Answer = run(call)
                return answer
            except GraphError as error:
                return self._answer_error(error, call)
            except StoreError as error:
                return self._answer_error(store_refusal(error), call)

        return Route(name, kind, handler, denied=None if is_open else self._refuse_unauthorized)

    # ---------------------------------------------------------------- other paths

    def _login_routes(self) -> list[tuple[str, str, Route]]:
        """Return the rows of the routes of the identity platform."""
        token = Route("token", Kind.FREE, lambda call: account.grant_token(self.state, call))
        authorize = Route("authorize", Kind.FREE, lambda call: account.authorize_user(self.state, call))
        openid = Route("openid configuration", Kind.FREE, account.openid_configuration)
        instances = Route("instance discovery", Kind.FREE, account.instance_discovery)
        keys = Route("keys", Kind.FREE, lambda _: answer_json({"keys": []}))
        device = Route("devicecode", Kind.FREE, lambda call: account.issue_device_code(self.state, call))
        agree = Route("devicelogin", Kind.FREE, lambda call: account.accept_user_code(self.state, call))
        return [
            ("POST", "/{tenant}/oauth2/v2.0/token", token),
            ("POST", "/{tenant}/oauth2/token", token),
            ("POST", "/oauth20_token.srf", token),
            ("GET", "/{tenant}/v2.0/.well-known/openid-configuration", openid),
            ("GET", "/{tenant}/.well-known/openid-configuration", openid),
            ("GET", "/{tenant}/discovery/instance", instances),
            ("GET", "/{tenant}/discovery/v2.0/keys", keys),
            ("GET", "/{tenant}/oauth2/v2.0/authorize", authorize),
            ("GET", "/{tenant}/oauth2/authorize", authorize),
            ("GET", "/oauth20_authorize.srf", authorize),
            ("POST", "/{tenant}/oauth2/v2.0/devicecode", device),
            ("GET", "/{tenant}/oauth2/deviceauth", agree),
            ("POST", "/{tenant}/oauth2/deviceauth", agree),
            ("GET", "/devicelogin", agree),
            ("POST", "/devicelogin", agree),
        ]

    def _other_routes(self) -> list[tuple[str, str, Route]]:
        """Return the rows of all routes besides those of items and of the login."""
        rows: list[tuple[str, str, Route]] = []
        session = self._make_other_route("upload fragment", Kind.WRITE, self._handle_fragment, is_open=True)
        session = replace(session, sink=lambda _: PieceWriter())
        status = self._make_other_route("upload status", Kind.META, self._handle_fragment, is_open=True)
        address = "/_api/v2.0/drives/{drive}/items/{item}/uploadSession"
        rows += [(method, address, session) for method in ("PUT", "POST", "DELETE")]
        rows.append(("GET", address, status))
        download = self._make_other_route("download", Kind.READ, self._answer_download, is_open=True)
        rows.append(("GET", "/personal/emulated/_layouts/15/download.aspx", download))
        rows.append(("HEAD", "/personal/emulated/_layouts/15/download.aspx", download))
        monitor = self._make_other_route("monitor", Kind.META, self._answer_monitor, is_open=True)
        rows.append(("GET", "/monitor/{job}", monitor))
        for version in ("v1.0", "beta", "_api/v2.0"):
            drives = self._make_other_route("GET drives", Kind.META, self._list_drives)
            owners = ("me", "users/{user}", "groups/{group}", "sites/{site}")
            rows += [("GET", f"/{version}/{owner}/drives", drives) for owner in owners]
            rows.append(("GET", f"/{version}/me", self._make_other_route("GET me", Kind.META, self._describe_user)))
            shared = self._make_other_route("GET shared", Kind.META, self._get_shared_item)
            rows += [("GET", f"/{version}/shares/{{share}}/{tail}", shared) for tail in ("driveItem", "root")]
        page = self._make_other_route(
            "link page", Kind.READ, lambda call: sharing.open_link_page(self.state, call), is_open=True
        )
        rows += [("GET", f"/{letter}/c/{{drive}}/{{token}}", page) for letter in "fu"]
        rows += [("GET", f"/:{letter}:/g/personal/emulated/{{token}}", page) for letter in "fu"]
        return rows

    def _handle_fragment(self, call: Call) -> Answer:
        query = parse_form(call.query)
        guid = query.get("guid", "").strip("'")
        if self.state.verify_signature(query.get("tempauth", "")) != guid:
            raise GraphError(401, "unauthenticated", "The caller is not authenticated.")
        return uploads.handle_fragment(self.state, call, guid)

    def _answer_download(self, call: Call) -> Answer:
        answer = files.answer_download(self.state, call, parse_form(call.query).get("tempauth", ""))
        if answer is None:
            raise GraphError(401, "unauthenticated", "The address has expired, or its item is gone.")
        return answer

    def _answer_monitor(self, call: Call) -> Answer:
        """Answer with the progress or the outcome of a copy."""
        job_id = call.parameters["job"]
        job = self.state.jobs.find(job_id, "copy")
        if job is None:
            raise GraphError(404, "itemNotFound", "The operation was not found")
        entries = self.state.copies[job_id]
        host = call.headers.get(b"host", b"").decode("latin-1")
        body: dict[str, Any] = {"@odata.context": f"https://{host}/$metadata#oneDrive.asynchronousOperationStatus"}
        if not job.is_complete:
            share = round(100 * len(job.results) / entries, 1)
            body |= {"operation": "itemCopy", "percentageComplete": share, "status": "inProgress"}
            return Answer(202, [(b"content-type", b"application/json")], json.dumps(body).encode())
        outcome = job.results[-1]
        if isinstance(outcome, Node):
            body |= {"percentageComplete": 100.0, "resourceId": outcome.id, "status": "completed"}
        else:
            error = store_refusal(StoreError(outcome))
            error_body = {"code": error.code, "message": error.message}
            body |= {"operation": "itemCopy", "percentageComplete": 0.0, "status": "failed", "error": error_body}
        return Answer(200, [(b"content-type", b"application/json")], json.dumps(body).encode())

    def _describe_user(self, call: Call) -> Answer:
        person, email = self.state.person, self.state.address
        shown = {"id": person["id"], "displayName": person["displayName"], "mail": email, "userPrincipalName": email}
        return answer_json({"@odata.context": f"{GRAPH}users/$entity", "businessPhones": [], **shown})

    def _list_drives(self, call: Call) -> Answer:
        request = GraphRequest(self.state, call, GraphAddress("v1.0", "me/drive", "", "", None, "", ""))
        return answer_json({"@odata.context": f"{GRAPH}drives", "value": [describe_drive(request)]})

    def _get_shared_item(self, call: Call) -> Answer:
        node = sharing.find_shared_item(self.state, call.parameters["share"], call.now_s)
        address = GraphAddress("v1.0", f"drives/{self.state.drive_id}", "", node.id, None, "driveItem", "")
        request = GraphRequest(self.state, call, address)
        request.require_supported_options()
        return sharing.FUNCTIONS["GET", "driveItem"].run(request)


def _function_names(path: str) -> set[str]:
    """Return the parts of a path that may be names of functions, without their namespaces."""
    functions = path.rpartition(":")[2] if ":/" in path else path
    return {part.removeprefix("microsoft.graph.").partition("(")[0] for part in unquote(functions).split("/")}


def _content_sink(call: Call) -> BlobWriter:
    return BlobWriter(QuickXor())
