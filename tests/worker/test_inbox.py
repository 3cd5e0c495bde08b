"""What may overtake what in a worker's inbox."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.protocol.worker import Close, Release, RunSegment
from djinn_lab.worker.inbox import Given, GivenBatch, Inbox, Item

SESSIONS = st.sampled_from(["ann", "bob", "eve"])
ITEMS = st.one_of(
    st.builds(
        lambda session, interleaved: Given(RunSegment("j", 0, session, b"", interleaved=interleaved)),
        SESSIONS,
        st.booleans(),
    ),
    st.builds(lambda session: Release(session, (1,)), SESSIONS),
    st.builds(Close, SESSIONS),
    st.builds(lambda session: GivenBatch(b"", (Given(RunSegment("j", 0, session, b"")),)), SESSIONS),
)


def sessions_of(item: Item) -> set[str]:
    if isinstance(item, GivenBatch):
        return {one.message.session for one in item.segments}
    assert isinstance(item, Given | Release | Close)
    return {item.message.session if isinstance(item, Given) else item.session}


def drained(inbox: Inbox) -> list[Item]:
    found = []
    while not inbox.empty:
        found.append(inbox.get())
    return found


@given(st.lists(ITEMS, max_size=12))
def test_what_is_taken_overtakes_nothing_of_its_session(items: list[Item]) -> None:
    inbox = Inbox()
    for item in items:
        inbox.put(item)
    taken = inbox.take_interleaved()
    assert inbox.interleaved == 0 or len(taken) < len(items)
    left = drained(inbox)
    assert inbox.interleaved == 0
    assert sorted(map(id, [*taken, *left])) == sorted(map(id, items))
    for session in ("ann", "bob", "eve"):
        assert [item for item in items if session in sessions_of(item)] == [
            item for item in (*taken, *left) if session in sessions_of(item)
        ]


@given(st.lists(ITEMS, max_size=12))
def test_first_interleaved_segments_of_a_session_are_taken(items: list[Item]) -> None:
    inbox = Inbox()
    for item in items:
        inbox.put(item)
    taken = inbox.take_interleaved()
    for session in ("ann", "bob", "eve"):
        first = next(
            (one for one in items if session in sessions_of(one) and not isinstance(one, Release)), None
        )
        interleaved = isinstance(first, Given) and first.message.interleaved
        assert interleaved == any(isinstance(one, Given) and session in sessions_of(one) for one in taken)


def test_empty_inbox_has_nothing_to_take_and_times_out() -> None:
    inbox = Inbox()
    assert inbox.take_interleaved() == []
    with pytest.raises(TimeoutError):
        inbox.get(0.0)
