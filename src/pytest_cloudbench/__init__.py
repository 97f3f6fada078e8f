"""pytest-cloudbench: measure and gate cloud storage the way pytest tests code.

This is the package's one public face: ``from pytest_cloudbench import Experiment``. Tests, suites, drivers, sync
clients and emulators of other projects import from here, and from no module below. What cannot be imported from here
is private.

A name is imported from its home when somebody first asks for it. Fifty agents import this package, and none of them
needs all of it.
"""

__all__ = [
    "CAPABILITIES", "CONSISTENCY_CHECKS", "CONSISTENCY_SETTLE_S", "DIGESTS", "KIB", "MIB", "PERCENTILES",
    "STATUS_KINDS", "Act", "Analysis", "Answer", "Answers", "Arrival", "BatchRules", "BatchedChange", "Bearer",
    "BestLevel", "Blob", "BlobWriter", "Bracket", "BracketSearch", "BudgetError", "Bursts", "BytePieces", "Call",
    "Capabilities", "Capture", "CaptureError", "CaptureResult", "CaptureUnavailable", "ClientError", "ClientFacts",
    "ClientUnavailable", "Closed", "CloudError", "CloudbenchError", "CommandService", "Composite", "ConfigError",
    "Conflict", "Contact", "Content", "ContentFile", "Counting", "CredentialSet", "CredentialsError", "Curve", "Delays",
    "Delivered", "Described", "Diurnal", "Documented", "Drift", "Driver", "Edit", "Egress", "EmpiricalSizes",
    "EmulatorService", "Endpoint", "Entry", "EntryOptions", "EqualPlacement", "ErrorKind", "Expectation", "Experiment",
    "FileNames", "Files", "FixedInterval", "FixedSize", "FleetError", "Forecast", "Gate", "Handler", "Inquiry",
    "Insert", "Jittered", "KeyView", "Lab", "LabItem", "LastResponse", "LevelSearch", "Link", "LinkError",
    "LinkUnavailable", "LiteralContent", "Load", "LocalClient", "LocatedServers", "Lognormal", "LognormalSizes",
    "LossGrid", "MakesFaults", "Match", "Metric", "MissingProgramError", "Mixture", "NameRules", "NameSeen", "Needle",
    "NodeStore", "OAuthLogin", "Observation", "Op", "Option", "Outcome", "Overheard", "OverheardFlow", "Overwrite",
    "PageTokens", "Parted", "PathView", "PayloadGenerator", "Payloads", "Placed", "Placement", "PlannedInterruption",
    "Played", "Poisson", "Preparing", "Probes", "Profile", "Provider", "ProviderSpec", "PublishedTable", "Quote",
    "RaidCosts", "RaidDriver", "RaidObserver", "RandomContent", "Receiver", "Refusal", "Replay", "RequestCount",
    "RequestKind", "Result", "ResultsError", "Rhythm", "Rounds", "Route", "RouteTable", "Sandbox", "SavingboxClient",
    "Series", "SeriesPlan", "Service", "ServiceError", "SharesLinks", "Sighting", "Skin", "SkinClock", "SpecError",
    "Split", "Stable", "Step", "StoreError", "Stranger", "Suite", "Surrounding", "SyncClient", "ThinkTime", "Threads",
    "ThroughputPlacement", "TimeCourse", "Tokens", "Trace", "Truncate", "UniformSizes", "UnknownMetric", "Unsuccessful",
    "UsageError", "Verb", "Verdict", "Way", "WebClient", "Window", "Wire", "WireSeen", "Workload", "WorldMap",
    "__version__", "add_suite_options", "adopt_suites", "analyze_traffic", "as_file", "binomial_sf", "byte_range",
    "chance_of_at_least", "check_params", "chunks", "client_names", "client_option", "connect_driver",
    "content_difference", "content_digest", "count_by_form", "count_contacts", "detail_of", "detail_of_error",
    "did_you_mean", "due_ns", "egress_of", "endpoint_of", "find_knee", "find_needles", "find_profile", "find_rhythm",
    "fit_line", "forecast_batching", "format_counts", "hash_blob", "import_lazily", "import_parts", "inquire",
    "is_loaded", "is_text", "is_web_address", "json_writer", "judge_availability", "judge_capabilities",
    "judge_constancy", "judge_drift", "judge_layer", "key_of", "kind_of_status", "least_placement_time_s", "list_peers",
    "load_recipe", "locate_servers", "looks_random", "make_arrival", "make_client", "make_payload", "make_text_needle",
    "md5_of", "mean_of_known", "measure_consistency", "measure_readiness", "missing_extra", "names_in",
    "note_all_missing", "now_ns", "open_provider", "parse_client_hello", "parse_duration_s", "parse_form",
    "parse_server_hello", "parse_trace", "path_of", "percentile", "placement_cost", "play_edits", "prefix_of",
    "read_trace", "read_tree", "recovery_cost", "repair_array", "require_success", "search_needles", "seconds_of",
    "sleep_until_ns", "slice_needles", "start_emulator", "survey_array", "time_percentiles", "timeout_of",
    "transfer_doubts", "transfer_means", "usable_credentials", "wait_for", "walk_folders",
]  # fmt: skip

__version__ = "1.0.0rc1"

TYPE_CHECKING = False
"""Type checkers take this for true. The constant of ``typing`` would cost an import."""

if TYPE_CHECKING:
    from pytest_cloudbench.data import read_trace
    from pytest_cloudbench.drivers import connect as connect_driver
    from pytest_cloudbench.drivers.base import (
        STATUS_KINDS,
        Composite,
        Counting,
        CredentialSet,
        Described,
        Driver,
        LastResponse,
        OAuthLogin,
        Parted,
        Placed,
        Preparing,
        RequestCount,
        check_params,
        detail_of,
        detail_of_error,
        endpoint_of,
        is_web_address,
        kind_of_status,
        names_in,
        timeout_of,
        usable_credentials,
    )
    from pytest_cloudbench.drivers.base import walk as walk_folders
    from pytest_cloudbench.drivers.egress import Egress, egress_of
    from pytest_cloudbench.drivers.keys import ContentFile, as_file, key_of, md5_of, path_of, prefix_of
    from pytest_cloudbench.drivers.pages import PageTokens
    from pytest_cloudbench.drivers.sdk_import import import_lazily, import_parts, is_loaded
    from pytest_cloudbench.drivers.stranger import SharesLinks, Stranger
    from pytest_cloudbench.drivers.surroundings import Surrounding
    from pytest_cloudbench.drivers.waits import seconds_of
    from pytest_cloudbench.drivers.web import Bearer, Unsuccessful, WebClient
    from pytest_cloudbench.emulators import EmulatorService, start_emulator
    from pytest_cloudbench.emulators.blob import Blob, BlobWriter, BytePieces, hash_blob
    from pytest_cloudbench.emulators.core import NodeStore, Tokens
    from pytest_cloudbench.emulators.http import byte_range, parse_form
    from pytest_cloudbench.emulators.keys import KeyView
    from pytest_cloudbench.emulators.nodes import StoreError
    from pytest_cloudbench.emulators.paths import PathView
    from pytest_cloudbench.emulators.profile import Profile, find_profile
    from pytest_cloudbench.emulators.routing import RouteTable
    from pytest_cloudbench.emulators.skin import Answer, Call, Handler, Match, Route, Skin
    from pytest_cloudbench.emulators.skin import Clock as SkinClock
    from pytest_cloudbench.emulators.skin import Kind as RequestKind
    from pytest_cloudbench.emulators.throttle import Refusal
    from pytest_cloudbench.judge.expect import Expectation, Gate
    from pytest_cloudbench.judge.metrics import Metric, time_percentiles
    from pytest_cloudbench.judge.search import BestLevel, Bracket, BracketSearch, LevelSearch
    from pytest_cloudbench.judge.shapes import Drift, fit_line
    from pytest_cloudbench.judge.shapes import availability as judge_availability
    from pytest_cloudbench.judge.shapes import constancy as judge_constancy
    from pytest_cloudbench.judge.shapes import drift as judge_drift
    from pytest_cloudbench.judge.shapes import knee as find_knee
    from pytest_cloudbench.judge.significance import binomial_sf
    from pytest_cloudbench.judge.stats import PERCENTILES, percentile
    from pytest_cloudbench.judge.steady import Stable
    from pytest_cloudbench.lab.clients import client_names, make_client
    from pytest_cloudbench.lab.clients.base import (
        ClientFacts,
        ClientUnavailable,
        Documented,
        LocalClient,
        MissingProgramError,
        Receiver,
        SyncClient,
        client_option,
    )
    from pytest_cloudbench.lab.clients.savingbox import SavingboxClient
    from pytest_cloudbench.lab.detect import CAPABILITIES, Observation, Step, Verdict, judge_capabilities
    from pytest_cloudbench.lab.detect.rhythm import Rhythm, find_rhythm
    from pytest_cloudbench.lab.locating import LocatedServers, locate_servers
    from pytest_cloudbench.lab.sync.activity import Act, Window
    from pytest_cloudbench.lab.sync.changes import Played, Workload, play_edits
    from pytest_cloudbench.lab.sync.contacts import Contact, count_contacts
    from pytest_cloudbench.lab.sync.item import LabItem
    from pytest_cloudbench.lab.sync.lab import Lab
    from pytest_cloudbench.lab.sync.overheard import Overheard, OverheardFlow
    from pytest_cloudbench.lab.sync.transfers import (
        PlannedInterruption,
        mean_of_known,
        recovery_cost,
        transfer_doubts,
        transfer_means,
    )
    from pytest_cloudbench.load.experiment import Experiment, Result, require_success
    from pytest_cloudbench.load.merging.wire import Wire, WireSeen
    from pytest_cloudbench.load.messages import SeriesPlan
    from pytest_cloudbench.load.names import FileNames
    from pytest_cloudbench.load.policy import adopt as adopt_suites
    from pytest_cloudbench.load.probes.consistency import CHECKS as CONSISTENCY_CHECKS
    from pytest_cloudbench.load.probes.consistency import SETTLE_S as CONSISTENCY_SETTLE_S
    from pytest_cloudbench.load.probes.consistency import measure_consistency
    from pytest_cloudbench.load.probes.inquiry import Inquiry, inquire
    from pytest_cloudbench.load.probes.readiness import measure_readiness
    from pytest_cloudbench.load.request import EntryOptions, Files, Load
    from pytest_cloudbench.load.sandbox import Sandbox
    from pytest_cloudbench.load.series import Series
    from pytest_cloudbench.model import (
        KIB,
        MIB,
        BudgetError,
        Capabilities,
        ClientError,
        CloudbenchError,
        CloudError,
        ConfigError,
        Conflict,
        Content,
        CredentialsError,
        Endpoint,
        Entry,
        ErrorKind,
        FleetError,
        NameRules,
        Op,
        Outcome,
        ProviderSpec,
        ResultsError,
        ServiceError,
        SpecError,
        UnknownMetric,
        UsageError,
        Verb,
        chunks,
        did_you_mean,
    )
    from pytest_cloudbench.net.capture import Capture, CaptureError, CaptureResult, CaptureUnavailable
    from pytest_cloudbench.net.link import Delivered, Link, LinkError, LinkUnavailable, Way
    from pytest_cloudbench.net.locate.placing import judge_layer
    from pytest_cloudbench.net.locate.survey import NameSeen
    from pytest_cloudbench.net.needles import (
        Needle,
        Sighting,
        count_by_form,
        find_needles,
        looks_random,
        make_text_needle,
        search_needles,
        slice_needles,
    )
    from pytest_cloudbench.net.sockets.peers import list_peers
    from pytest_cloudbench.net.traffic import Analysis
    from pytest_cloudbench.net.traffic import analyze as analyze_traffic
    from pytest_cloudbench.net.traffic.handshake import parse_client_hello, parse_server_hello
    from pytest_cloudbench.net.traffic.protection import is_text
    from pytest_cloudbench.plugin.options import Option, add_suite_options
    from pytest_cloudbench.providers import Provider
    from pytest_cloudbench.providers import provided as open_provider
    from pytest_cloudbench.raid.coding.availability import chance_of_at_least
    from pytest_cloudbench.raid.coding.placement import Throughput as ThroughputPlacement
    from pytest_cloudbench.raid.coding.placement import least_placement_time_s, placement_cost
    from pytest_cloudbench.raid.coding.policies import Equal as EqualPlacement
    from pytest_cloudbench.raid.coding.policies import Placement, Split
    from pytest_cloudbench.raid.costs import Costs as RaidCosts
    from pytest_cloudbench.raid.driver import RaidDriver
    from pytest_cloudbench.raid.maintenance import note_all_missing, repair_array
    from pytest_cloudbench.raid.observing import Observer as RaidObserver
    from pytest_cloudbench.raid.survey import survey_array
    from pytest_cloudbench.results.suite import (
        Answers,
        Curve,
        Delays,
        LossGrid,
        Probes,
        PublishedTable,
        Quote,
        Rounds,
        Suite,
        TimeCourse,
        WorldMap,
    )
    from pytest_cloudbench.savingbox.batching.batcher import BatchRules
    from pytest_cloudbench.savingbox.batching.batcher import Change as BatchedChange
    from pytest_cloudbench.savingbox.batching.forecast import Forecast, forecast_batching
    from pytest_cloudbench.services import MakesFaults, Service
    from pytest_cloudbench.services.command import CommandService, load_recipe
    from pytest_cloudbench.support.clock import due_ns, now_ns, parse_duration_s, sleep_until_ns, wait_for
    from pytest_cloudbench.support.extras import missing_extra
    from pytest_cloudbench.support.json_text import json_writer
    from pytest_cloudbench.support.opening import read_tree
    from pytest_cloudbench.support.wording import format_counts
    from pytest_cloudbench.workload.arrival import (
        Arrival,
        Bursts,
        Closed,
        Diurnal,
        FixedInterval,
        Jittered,
        Lognormal,
        Poisson,
        ThinkTime,
        Threads,
    )
    from pytest_cloudbench.workload.arrival import arrival as make_arrival
    from pytest_cloudbench.workload.payload import DIGESTS, Payloads, RandomContent
    from pytest_cloudbench.workload.payload import digest as content_digest
    from pytest_cloudbench.workload.payload import generator as make_payload
    from pytest_cloudbench.workload.payload.base import Generator as PayloadGenerator
    from pytest_cloudbench.workload.payload.contents import Literal as LiteralContent
    from pytest_cloudbench.workload.payload.contents import difference as content_difference
    from pytest_cloudbench.workload.payload.edits import Edit, Insert, Overwrite, Truncate
    from pytest_cloudbench.workload.payload.sizes import EmpiricalSizes, FixedSize, LognormalSizes, UniformSizes
    from pytest_cloudbench.workload.trace import Mixture, Replay, Trace, parse_trace

_NAMES = {
    # values, units and errors
    "pytest_cloudbench.model": (
        "BudgetError Capabilities ClientError CloudError CloudbenchError ConfigError Conflict Content "
        "CredentialsError Endpoint Entry ErrorKind FleetError KIB MIB NameRules Op Outcome ProviderSpec "
        "ResultsError ServiceError SpecError UnknownMetric UsageError Verb chunks did_you_mean"
    ),
    # what is sent, and when
    "pytest_cloudbench.workload.arrival": (
        "Arrival Bursts Closed Diurnal FixedInterval Jittered Lognormal Poisson ThinkTime Threads make_arrival=arrival"
    ),
    "pytest_cloudbench.workload.trace": "Mixture Replay Trace parse_trace",
    "pytest_cloudbench.data": "read_trace",
    "pytest_cloudbench.workload.payload": "DIGESTS Payloads RandomContent content_digest=digest make_payload=generator",
    "pytest_cloudbench.workload.payload.base": "PayloadGenerator=Generator",
    "pytest_cloudbench.workload.payload.contents": "LiteralContent=Literal content_difference=difference",
    "pytest_cloudbench.workload.payload.edits": "Edit Insert Overwrite Truncate",
    "pytest_cloudbench.workload.payload.sizes": "EmpiricalSizes FixedSize LognormalSizes UniformSizes",
    # experiments on providers
    "pytest_cloudbench.load.experiment": "Experiment Result require_success",
    "pytest_cloudbench.load.names": "FileNames",
    "pytest_cloudbench.load.request": "EntryOptions Files Load",
    "pytest_cloudbench.load.messages": "SeriesPlan",
    "pytest_cloudbench.load.series": "Series",
    "pytest_cloudbench.load.sandbox": "Sandbox",
    "pytest_cloudbench.load.merging.wire": "Wire WireSeen",
    "pytest_cloudbench.load.probes.consistency": (
        "CONSISTENCY_CHECKS=CHECKS CONSISTENCY_SETTLE_S=SETTLE_S measure_consistency"
    ),
    "pytest_cloudbench.load.probes.inquiry": "Inquiry inquire",
    "pytest_cloudbench.load.probes.readiness": "measure_readiness",
    "pytest_cloudbench.load.policy": "adopt_suites=adopt",
    "pytest_cloudbench.plugin.options": "Option add_suite_options",
    "pytest_cloudbench.results.suite": (
        "Answers Curve Delays LossGrid Probes PublishedTable Quote Rounds Suite TimeCourse WorldMap"
    ),
    "pytest_cloudbench.providers": "Provider open_provider=provided",
    "pytest_cloudbench.support.clock": "due_ns now_ns parse_duration_s sleep_until_ns wait_for",
    "pytest_cloudbench.support.extras": "missing_extra",
    "pytest_cloudbench.support.opening": "read_tree",
    "pytest_cloudbench.support.wording": "format_counts",
    # judging
    "pytest_cloudbench.judge.expect": "Expectation Gate",
    "pytest_cloudbench.net.needles": (
        "Needle Sighting count_by_form find_needles looks_random make_text_needle search_needles slice_needles"
    ),
    "pytest_cloudbench.judge.metrics": "Metric time_percentiles",
    "pytest_cloudbench.judge.search": "BestLevel Bracket BracketSearch LevelSearch",
    "pytest_cloudbench.judge.shapes": (
        "Drift find_knee=knee fit_line judge_availability=availability judge_constancy=constancy judge_drift=drift"
    ),
    "pytest_cloudbench.judge.significance": "binomial_sf",
    "pytest_cloudbench.judge.stats": "PERCENTILES percentile",
    "pytest_cloudbench.judge.steady": "Stable",
    # drivers
    "pytest_cloudbench.drivers": "connect_driver=connect",
    "pytest_cloudbench.drivers.base": (
        "Composite Counting CredentialSet Described Driver LastResponse OAuthLogin Parted Placed Preparing "
        "RequestCount STATUS_KINDS check_params detail_of detail_of_error endpoint_of is_web_address "
        "kind_of_status names_in timeout_of usable_credentials walk_folders=walk"
    ),
    "pytest_cloudbench.drivers.egress": "Egress egress_of",
    "pytest_cloudbench.drivers.keys": "ContentFile as_file key_of md5_of path_of prefix_of",
    "pytest_cloudbench.drivers.pages": "PageTokens",
    "pytest_cloudbench.drivers.sdk_import": "import_lazily import_parts is_loaded",
    "pytest_cloudbench.drivers.stranger": "SharesLinks Stranger",
    "pytest_cloudbench.drivers.surroundings": "Surrounding",
    "pytest_cloudbench.drivers.waits": "seconds_of",
    "pytest_cloudbench.drivers.web": "Bearer Unsuccessful WebClient",
    # emulators and other services
    "pytest_cloudbench.emulators": "EmulatorService start_emulator",
    "pytest_cloudbench.emulators.blob": "Blob BlobWriter BytePieces hash_blob",
    "pytest_cloudbench.emulators.core": "NodeStore Tokens",
    "pytest_cloudbench.emulators.http": "byte_range parse_form",
    "pytest_cloudbench.support.json_text": "json_writer",
    "pytest_cloudbench.emulators.keys": "KeyView",
    "pytest_cloudbench.emulators.nodes": "StoreError",
    "pytest_cloudbench.emulators.paths": "PathView",
    "pytest_cloudbench.emulators.profile": "Profile find_profile",
    "pytest_cloudbench.emulators.routing": "RouteTable",
    "pytest_cloudbench.emulators.skin": "Answer Call Handler Match RequestKind=Kind Route Skin SkinClock=Clock",
    "pytest_cloudbench.emulators.throttle": "Refusal",
    "pytest_cloudbench.services": "MakesFaults Service",
    "pytest_cloudbench.services.command": "CommandService load_recipe",
    # sync clients and their network
    "pytest_cloudbench.lab.clients": "client_names make_client",
    "pytest_cloudbench.lab.clients.base": (
        "ClientFacts ClientUnavailable Documented LocalClient MissingProgramError Receiver SyncClient client_option"
    ),
    "pytest_cloudbench.lab.clients.savingbox": "SavingboxClient",
    "pytest_cloudbench.lab.sync.lab": "Lab",
    "pytest_cloudbench.lab.sync.overheard": "Overheard OverheardFlow",
    "pytest_cloudbench.lab.sync.item": "LabItem",
    "pytest_cloudbench.lab.locating": "LocatedServers locate_servers",
    "pytest_cloudbench.net.locate.placing": "judge_layer",
    "pytest_cloudbench.net.locate.survey": "NameSeen",
    "pytest_cloudbench.net.sockets.peers": "list_peers",
    "pytest_cloudbench.lab.sync.activity": "Act Window",
    "pytest_cloudbench.lab.sync.contacts": "Contact count_contacts",
    "pytest_cloudbench.lab.sync.changes": "Played Workload play_edits",
    "pytest_cloudbench.lab.sync.transfers": (
        "PlannedInterruption mean_of_known recovery_cost transfer_doubts transfer_means"
    ),
    "pytest_cloudbench.net.link": "Delivered Link LinkError LinkUnavailable Way",
    "pytest_cloudbench.net.capture": "Capture CaptureError CaptureResult CaptureUnavailable",
    "pytest_cloudbench.net.traffic": "Analysis analyze_traffic=analyze",
    "pytest_cloudbench.net.traffic.handshake": "parse_client_hello parse_server_hello",
    "pytest_cloudbench.net.traffic.protection": "is_text",
    "pytest_cloudbench.lab.detect": "CAPABILITIES Observation Step Verdict judge_capabilities",
    "pytest_cloudbench.lab.detect.rhythm": "Rhythm find_rhythm",
    "pytest_cloudbench.savingbox.batching.batcher": "BatchRules BatchedChange=Change",
    "pytest_cloudbench.savingbox.batching.forecast": "Forecast forecast_batching",
    # arrays of providers
    "pytest_cloudbench.raid.coding.availability": "chance_of_at_least",
    "pytest_cloudbench.raid.coding.placement": ("ThroughputPlacement=Throughput least_placement_time_s placement_cost"),
    "pytest_cloudbench.raid.coding.policies": "EqualPlacement=Equal Placement Split",
    "pytest_cloudbench.raid.costs": "RaidCosts=Costs",
    "pytest_cloudbench.raid.driver": "RaidDriver",
    "pytest_cloudbench.raid.maintenance": "note_all_missing repair_array",
    "pytest_cloudbench.raid.observing": "RaidObserver=Observer",
    "pytest_cloudbench.raid.survey": "survey_array",
}
"""The names of each home module. The part after an equals sign is the name there."""

_HOMES = {name.partition("=")[0]: (home, name) for home, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a checker would believe that every name exists

    def __getattr__(name: str) -> object:
        """Import a public name from its home. Later uses find it here."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no public name {name!r}")
        from importlib import import_module

        home, entry = _HOMES[name]
        value = getattr(import_module(home), entry.partition("=")[2] or name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
