"""Messages over a channel: they arrive unchanged, and errors name the wrong field."""

from __future__ import annotations

import datetime
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest
from execnet.gateway_base import dumps, loads
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field

from pytest_cloudbench import __version__
from pytest_cloudbench.fleet.messages import Ask, Entered, Meet, Message, decode_from_agent, encode, missing_lines
from pytest_cloudbench.fleet.offsets import Offset
from pytest_cloudbench.judge.expect import Expectation
from pytest_cloudbench.load import messages
from pytest_cloudbench.load.messages import HandedIn, ListingPage, LoadShape, Merged, Start, Subject
from pytest_cloudbench.load.names import FileNames
from pytest_cloudbench.load.request import EntryOptions
from pytest_cloudbench.model import Endpoint, FleetError, Verb
from pytest_cloudbench.providers.for_agents import Provided

from .harness import Lab

SUBJECT = Subject("run", "a.py::t", "a.py::t", "t", "t", {"size": 3}, "run", "folder:/x", None, True, {"lib": "1"})
CLAIM = Expectation("folder:/x", "loss_rate", None, 0.5, "a paper", datetime.date(2014, 6, 30), {"size": 3})
START = Start(
    SUBJECT, LoadShape(10, 20, names=FileNames(".jpg"), operation=Verb.GET),
    EntryOptions(expect=(CLAIM,), notes=("slow",)), 1.5, addresses=(("127.0.0.1", 443), ("::1", 80)),
)  # fmt: skip


def send_through_channel(message: Message) -> Any:
    """Send a message through an execnet channel, and return the payload that arrives."""
    meeting = decode_from_agent(loads(dumps(encode(Meet(1, "item", "name", message)))))
    assert isinstance(meeting, Meet)
    return meeting.payload


class Sample(Message, frozen=True):
    """A message with every kind of field."""

    number: int
    maybe: int | None
    share: float
    texts: tuple[str | None, ...]
    pair: tuple[str, int]
    counts: Mapping[str, int] = field(default_factory=dict)
    raw: bytes = b""


@given(
    st.builds(
        Sample,
        st.integers(-(2**63), 2**64 - 1),
        st.none() | st.integers(-(2**40), 2**40),
        st.floats(allow_nan=False),
        st.lists(st.none() | st.text()).map(tuple),
        st.tuples(st.text(), st.integers(-5, 5)),
        st.dictionaries(st.text(), st.integers(0, 9)),
        st.binary(),
    )
)
def test_message_survives_its_plain_form(message: Sample) -> None:
    assert Sample.from_plain(send_through_channel(message)) == message
    assert message.plain() == send_through_channel(message)


@pytest.mark.parametrize(
    "message",
    [
        START,
        HandedIn("run", "", ("moved",), None, "", verified=True),
        Merged({"loss_rate": None, "levels": [1, [2, 3]]}, (("met", "gate x"),), (), ("note",)),
        Offset(-(10**13), 500, 7),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_within_messages(message: Message) -> None:
    assert type(message).from_plain(send_through_channel(message)) == message


def test_every_message_has_types_that_are_checked() -> None:
    kinds = [value for value in vars(messages).values() if isinstance(value, type) and issubclass(value, Message)]
    kinds = [kind for kind in kinds if kind is not Message]
    assert len(kinds) > 20
    for kind in kinds:
        with pytest.raises(FleetError, match=f"message {kind.__name__}: Object contains unknown field `zebra`"):
            kind.from_plain({"zebra": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": None}, "message Entered: Object missing required field `index`"),
        ({"index": "1"}, "message Entered: Expected `int`, got `str` - at `$.index`"),
        ({"index": True}, "message Entered: Expected `int`, got `bool` - at `$.index`"),
        ({"stop": 1}, "message Entered: Expected `str`, got `int` - at `$.stop`"),
        ({"zebra": 1}, "message Entered: Object contains unknown field `zebra`"),
    ],
)
def test_wrong_field_of_a_message_is_named(change: dict[str, Any], message: str) -> None:
    fields = Entered(0, 1, "").plain() | change
    data = {key: fields[key] for key in fields if fields[key] is not None}
    with pytest.raises(FleetError) as caught:
        Entered.from_plain(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("subject", "versions"), {"lib": 1}, "Expected `str`, got `int` - at `$.subject.versions[...]`"),
        (("load", "ops"), "many", "Expected `int`, got `str` - at `$.load.ops`"),
        (("load", "operation"), "burn", "Invalid enum value 'burn' - at `$.load.operation`"),
        (("entry", "notes"), "slow", "Expected `array`, got `str` - at `$.entry.notes`"),
        (("entry", "published"), [], "Expected `object`, got `array` - at `$.entry.published`"),
        (("load",), None, "Expected `object`, got `null` - at `$.load`"),
    ],
)
def test_wrong_nested_field_of_a_message_is_named(path: tuple[str, ...], value: Any, message: str) -> None:
    data = START.plain()
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(FleetError) as caught:
        Start.from_plain(data)
    assert str(caught.value) == f"message Start: {message}"


def test_wrong_type_deep_in_a_column_is_named() -> None:
    page = ListingPage("run", ("a",) * 3000, (1,) * 3000, ("00", None, "11") * 1000).plain()
    assert ListingPage.from_plain(page).digests[1] is None
    page["sizes_bytes"][2999] = 1.5
    with pytest.raises(
        FleetError, match=r"message ListingPage: Expected `int`, got `float` - at `\$\.sizes_bytes\[2999\]`"
    ):
        ListingPage.from_plain(page)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "Merged.info: cannot send a object; expected plain data"),
        (2**64, "Merged.info: can't serialize ints < -2**63 or > 2**64 - 1"),
        ([0, -(2**64)], "Merged.info: can't serialize ints < -2**63 or > 2**64 - 1"),
    ],
)
def test_value_that_cannot_be_sent_is_named_before_sending(value: Any, message: str) -> None:
    with pytest.raises(FleetError) as caught:
        encode(Ask(1, "name", Merged({"x": value}, (), (), ())))
    assert str(caught.value) == message


def test_values_that_look_plain_are_made_plain() -> None:
    info = {"verb": Verb.GET, "times": array("d", [0.5]), "day": datetime.date(2014, 6, 30), "claim": CLAIM}
    merged = Merged.from_plain(send_through_channel(Merged(info, (), (), ())))
    claim = {**asdict(CLAIM), "date": "2014-06-30"}
    assert merged.info == {"verb": "get", "times": [0.5], "day": "2014-06-30", "claim": claim}
    assert type(merged.info["verb"]) is str


def test_an_agent_of_another_version_takes_no_part(lab: Lab) -> None:
    lab.write("def test_it(experiment): pass")
    (lab.folder / "conftest.py").write_text(
        "import os\n"
        "if 'PYTEST_XDIST_WORKER' in os.environ:\n"
        "    from pytest_cloudbench.fleet import worker\n"
        "    worker.__version__ = '0.0.9'\n"
    )
    run = lab.run("-n", "1", "--max-worker-restart=0")
    assert run.status not in (0, 5), run.text
    line = f"gw0 has pytest-cloudbench 0.0.9, and the controller {__version__}: install the same version"
    assert run.lines_with(line), run.text


def test_endpoint_addresses_follow_its_urls() -> None:
    urls = {
        "api": "https://127.0.0.1:5001/v2",
        "content": "https://127.0.0.1:5001",
        "files": "sftp://[::1]",
        "": "http://a",
    }
    assert Endpoint(urls).addresses == (("127.0.0.1", 5001), ("::1", 22), ("a", 80))


def test_all_services_of_a_tree_are_known_or_none() -> None:
    def part(*children: Provided, port: int = 0) -> Provided:
        return Provided("x", Endpoint({"": f"http://h:{port}"}) if port else None, children=children)

    assert part().addresses == ()
    assert part(part(), part(part())).addresses == ()
    assert part(part(port=1), part(part(port=2), part(port=3))).addresses == (("h", 1), ("h", 2), ("h", 3))
    assert part(part(port=1), part(part(port=2), part())).addresses is None
    assert send_through_channel(Provided.from_plain(send_through_channel(part(part(port=1))))) == send_through_channel(
        part(part(port=1))
    )


def test_fifty_agents_that_were_lost_take_one_line() -> None:
    fifty = {f"gw{number}": "was lost" for number in range(50)}
    assert missing_lines(fifty) == ["gw0 was lost; the same goes for 49 others (gw1, gw2, gw3, gw4, ...)"]
    assert missing_lines({}) == []
    two_reasons = {"gw3": "was lost", "gw0": "said no more", "gw7": "was lost"}
    assert missing_lines(two_reasons) == ["gw3 was lost; the same goes for 1 other (gw7)", "gw0 said no more"]
