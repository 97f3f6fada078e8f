"""OneDrive in Microsoft Graph v1.0 on top of the core, written from the published documents and metadata.

What may live here: routing, and the envelopes of a request: who may ask, and the form of errors. The functions are in
the modules beside this one, each with its ``FUNCTIONS`` table. Nothing here imports a driver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

from pytest_cloudbench.emulators.blob import BlobWriter, PieceWriter
from pytest_cloudbench.emulators.core import Tokens
from pytest_cloudbench.emulators.http import fields
from pytest_cloudbench.emulators.nodes import Node, StoreError
from pytest_cloudbench.emulators.oauth import OAuth
from pytest_cloudbench.emulators.onedrive import account, changes, files, legacy, sharing, uploads
from pytest_cloudbench.emulators.onedrive.address import GraphAddress, parse, without_doubled_slashes
from pytest_cloudbench.emulators.onedrive.answers import (
    GRAPH,
    JSON_SPACED,
    GraphError,
    answer_json,
    error_answer,
    from_store,
    not_offered,
)
from pytest_cloudbench.emulators.onedrive.items import PERSON, drive
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
_NOT_OFFERED: Mapping[str, str] = {
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
"""What Graph has and this emulator does not, by the part of the path that asks for it."""
_METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")


class _Parsed(dict[str, str]):
    """The parameters of a call, with the parsed address."""

    def __init__(self, address: GraphAddress) -> None:
        super().__init__()
        self.address = address


class OneDrive:
    """The skin: see ``skin.Skin``."""

    roles = ("api", "login")
    host_names = (
        "graph.microsoft.com",
        "login.microsoftonline.com",
        "login.live.com",
        "microsoft.com",
        "www.microsoft.com",
        "api.onedrive.com",
        "my.microsoftpersonalcontent.com",
        "*.sharepoint.com",
    )

    def __init__(self, profile: Profile, clock: Clock, seed: int) -> None:
        tokens = Tokens(seed)
        access_token, self._requests = tokens.next("EwB", 120), 0
        self.credentials = {"access_token": access_token}
        key = blake2b(f"{seed}".encode(), digest_size=16)
        drive_id = f"b!{tokens.next('', 64)}" if profile.account.type != "personal" else key.hexdigest()[:16].upper()
        tree = GraphTree(seed + 1, clock.now_s(), drive_id)
        oauth = OAuth(account.DIALECT, tokens.next, lambda: self.state.account.token_lifetime_s)
        self.state = GraphState(
            tree, clock, profile.account, profile.jobs, drive_id, blake2b(key=key.digest(), digest_size=12), oauth
        )
        oauth.add(access_token)
        self.configure(profile)
        self._routes = {key: self._route(key, function) for key, function in _FUNCTIONS.items()}
        self._others = RouteTable([*self._login_routes(), *self._other_routes()])

    def configure(self, profile: Profile) -> None:
        """The profile changed."""
        self.state.tree.store.quota_bytes = profile.quota.bytes
        self.state.tree.store.readiness_s = profile.readiness.delay_s
        self.state.tree.store.list_delay_s = profile.readiness.list_delay_s
        self.state.tree.store.delete_delay_s = profile.readiness.delete_delay_s
        self.state.account = profile.account
        self.state.job_times = profile.jobs

    def route(self, method: str, path: str, query: bytes) -> Match | None:
        """Items by their addresses; the rest by its path."""
        address = parse(path)
        if address is not None:
            name = address.function if address.base or address.function else "drive"
            route = self._routes.get((method, name))
            if route is not None:
                return Match(route, _Parsed(address))
        return self._others.find(method, without_doubled_slashes(path))

    def refused(self, call: Call, refusal: Refusal) -> Answer:
        """Status 429 with the seconds to wait."""
        words = {"activityLimitReached": "The app or user has been throttled."}
        message = words.get(refusal.reason, "Too many requests")
        wait = (b"retry-after", b"%d" % refusal.retry_after_s)
        return self._said(GraphError(429, refusal.reason, message, "throttledRequest", (wait,)), call)

    def broken(self, call: Call) -> Answer:
        """Status 500."""
        return self._said(GraphError(500, "generalException", "An unspecified error has occurred."), call)

    def unknown(self, method: str, path: str) -> Answer:
        """Not a function of the API, or not with this method."""
        path = without_doubled_slashes(path)
        address, now_s = parse(path), self.state.clock.now_s()
        known = [what for segment, what in _NOT_OFFERED.items() if segment in _segments(path)]
        if known:
            error = not_offered(known[0])
        elif address is not None:
            name = address.function if address.base or address.function else "drive"
            if any((other, name) in _FUNCTIONS for other in _METHODS):
                error = GraphError(405, "invalidRequest", "The HTTP method is not allowed on this resource.")
            else:
                last = name.rpartition("/")[2]
                error = GraphError(400, "BadRequest", f"Resource not found for the segment '{last[:60]}'.")
        elif self._others.methods(path):
            error = GraphError(405, "invalidRequest", "The HTTP method is not allowed on this resource.")
        elif path.startswith(("/v1.0/", "/beta/")):
            segment = path.split("/")[2][:60]
            error = GraphError(400, "BadRequest", f"Resource not found for the segment '{segment}'.")
        else:
            error = GraphError(404, "ResourceNotFound", "The resource could not be found.")
        return error_answer(error, now_s, self._request_id())

    # ---------------------------------------------------------------- one request

    def _request_id(self) -> str:
        self._requests += 1
        return f"00000000-0000-4000-8000-{self._requests:012x}"

    def _said(self, error: GraphError, call: Call) -> Answer:
        client_id = call.headers.get(b"client-request-id", b"").decode("latin-1")
        return error_answer(error, call.now_s, self._request_id(), client_id)

    def _route(self, key: tuple[str, str], function: GraphFunction) -> Route:
        method, name = key

        def handler(call: Call) -> Answer:
            self.state.jobs.advance(call.now_s)
            assert isinstance(call.parameters, _Parsed)
            request = GraphRequest(self.state, call, call.parameters.address)
            try:
                self.state.require_drive(request.address)
                request.require_offered_options()
                answer = function.run(request)
                return legacy.reworded(request, answer) if legacy.is_legacy(request) else answer
            except GraphError as error:
                if error.status == 400 and "drive id" in error.message:
                    body = json.dumps({"error": {"code": error.code, "message": error.message}}).encode()
                    return Answer(400, [(b"content-type", JSON_SPACED)], body)
                return self._said(error, call)
            except StoreError as error:
                return self._said(from_store(error), call)

        sink = _hasher if function.takes_content else None
        return Route(f"{method} {name or 'item'}", function.kind, handler, sink=sink, denied=self._denied)

    def _denied(self, call: Call) -> Answer | None:
        address = call.parameters.address if isinstance(call.parameters, _Parsed) else None
        error = account.denied(self.state, call, address)
        return None if error is None else self._said(error, call)

    def _guarded(self, name: str, kind: Kind, run: Any, *, is_open: bool = False) -> Route:
        """A route outside the drive's addresses; ``is_open``: knowing its address is enough."""

        def handler(call: Call) -> Answer:
            self.state.jobs.advance(call.now_s)
            try:
                answer: Answer = run(call)
                return answer
            except GraphError as error:
                return self._said(error, call)
            except StoreError as error:
                return self._said(from_store(error), call)

        return Route(name, kind, handler, denied=None if is_open else self._denied)

    # ---------------------------------------------------------------- other paths

    def _login_routes(self) -> list[tuple[str, str, Route]]:
        token = Route("token", Kind.FREE, lambda call: account.token(self.state, call))
        authorize = Route("authorize", Kind.FREE, lambda call: account.authorize(self.state, call))
        openid = Route("openid configuration", Kind.FREE, account.openid_configuration)
        instances = Route("instance discovery", Kind.FREE, account.instance_discovery)
        keys = Route("keys", Kind.FREE, lambda _: answer_json({"keys": []}))
        device = Route("devicecode", Kind.FREE, lambda call: account.device_code(self.state, call))
        agree = Route("devicelogin", Kind.FREE, lambda call: account.agree(self.state, call))
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
        rows: list[tuple[str, str, Route]] = []
        session = self._guarded("upload fragment", Kind.WRITE, self._fragment, is_open=True)
        session = replace(session, sink=lambda _: PieceWriter())
        status = self._guarded("upload status", Kind.META, self._fragment, is_open=True)
        place = "/_api/v2.0/drives/{drive}/items/{item}/uploadSession"
        rows += [(method, place, session) for method in ("PUT", "POST", "DELETE")]
        rows.append(("GET", place, status))
        download = self._guarded("download", Kind.READ, self._download, is_open=True)
        rows.append(("GET", "/personal/emulated/_layouts/15/download.aspx", download))
        rows.append(("HEAD", "/personal/emulated/_layouts/15/download.aspx", download))
        rows.append(("GET", "/monitor/{job}", self._guarded("monitor", Kind.META, self._monitor, is_open=True)))
        for version in ("v1.0", "beta", "_api/v2.0"):
            drives = self._guarded("GET drives", Kind.META, self._drives)
            owners = ("me", "users/{user}", "groups/{group}", "sites/{site}")
            rows += [("GET", f"/{version}/{owner}/drives", drives) for owner in owners]
            rows.append(("GET", f"/{version}/me", self._guarded("GET me", Kind.META, _me)))
            shared = self._guarded("GET shared", Kind.META, self._shared)
            rows += [("GET", f"/{version}/shares/{{share}}/{tail}", shared) for tail in ("driveItem", "root")]
        return rows

    def _fragment(self, call: Call) -> Answer:
        query = fields(call.query)
        guid = query.get("guid", "").strip("'")
        if self.state.unsigned(query.get("tempauth", "")) != guid:
            raise GraphError(401, "unauthenticated", "The caller is not authenticated.")
        return uploads.fragment(self.state, call, guid)

    def _download(self, call: Call) -> Answer:
        answer = files.download(self.state, call, fields(call.query).get("tempauth", ""))
        if answer is None:
            raise GraphError(401, "unauthenticated", "The address has expired, or its item is gone.")
        return answer

    def _monitor(self, call: Call) -> Answer:
        """How far a copy is."""
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
        made = job.results[-1]
        if isinstance(made, Node):
            body |= {"percentageComplete": 100.0, "resourceId": made.id, "status": "completed"}
        else:
            error = from_store(StoreError(made))
            told = {"code": error.code, "message": error.message}
            body |= {"operation": "itemCopy", "percentageComplete": 0.0, "status": "failed", "error": told}
        return Answer(200, [(b"content-type", b"application/json")], json.dumps(body).encode())

    def _drives(self, call: Call) -> Answer:
        request = GraphRequest(self.state, call, GraphAddress("v1.0", "me/drive", "", "", None, "", ""))
        return answer_json({"@odata.context": f"{GRAPH}drives", "value": [drive(request)]})

    def _shared(self, call: Call) -> Answer:
        node = sharing.shared_item(self.state, call.parameters["share"], call.now_s)
        address = GraphAddress("v1.0", f"drives/{self.state.drive_id}", "", node.id, None, "driveItem", "")
        return sharing.FUNCTIONS["GET", "driveItem"].run(GraphRequest(self.state, call, address))


def _segments(path: str) -> set[str]:
    """Returns the parts of a path that may name a function, without their namespaces."""
    behind_names = path.rpartition(":")[2] if ":/" in path else path
    return {part.removeprefix("microsoft.graph.").partition("(")[0] for part in unquote(behind_names).split("/")}


def _me(call: Call) -> Answer:
    shown = {"id": PERSON["id"], "displayName": PERSON["displayName"], "mail": PERSON["email"]}
    context = {"@odata.context": f"{GRAPH}users/$entity", "businessPhones": [], "userPrincipalName": PERSON["email"]}
    return answer_json({**context, **shown})


def _hasher(call: Call) -> BlobWriter:
    return BlobWriter(QuickXor())
