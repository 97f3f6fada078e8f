"""Does our client do the right thing when the service fails?"""

import pytest
from notes import Notes


@pytest.fixture
def notes(dropbox):
    return Notes(dropbox.host, dropbox.token, dropbox.ca_file, sleep=lambda _: None)


def test_a_note_comes_back_as_it_was(notes):
    notes.write("/shopping.txt", "bread, salt, thé")
    assert notes.read("/shopping.txt") == "bread, salt, thé"


def test_it_waits_as_long_as_the_service_asks(notes, dropbox):
    dropbox.control(set={"throttle.rate_per_s": 0.01, "throttle.burst": 1, "throttle.retry_after_s": 7})
    dropbox.control(refill=True)
    notes.write("/one.txt", "accepted")
    with pytest.raises(RuntimeError, match="429"):
        notes.write("/two.txt", "refused")
    assert notes.waited_s == [7.0, 7.0, 7.0]


def test_it_gives_up_after_errors_that_do_not_end(notes, dropbox):
    dropbox.control(set={"faults.error_rate": 1})
    with pytest.raises(RuntimeError, match="500"):
        notes.write("/note.txt", "never stored")
    assert len(notes.waited_s) == 3


def test_it_survives_connections_that_break(notes, dropbox):
    notes.write("/note.txt", "first")
    dropbox.control(set={"faults.reset_rate": 1})
    with pytest.raises(OSError):
        notes.write("/note.txt", "second")
    dropbox.control(set={"faults.reset_rate": 0})
    notes.write("/note.txt", "third")
    assert notes.read("/note.txt") == "third"
