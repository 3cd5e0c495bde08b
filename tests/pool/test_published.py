"""Published data and pages of usage, in both kinds of database."""

from __future__ import annotations

from test_usage_pages import stored

from djinn_lab.pool.database.published import (
    Published,
    PublishedData,
    forget_published,
    read_published,
    write_published,
)
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.database.usage_history import read_used

FEATURES = Published("ann", "vision/ann", "features", "nb1", 1.0)
LABELS = Published("bob", "vision/bob", "labels/v1", "", 2.0)


def test_what_is_published_is_there_for_the_next_pool_until_it_is_forgotten(database: str) -> None:
    store = Store(database)
    for one in (FEATURES, LABELS, FEATURES):
        store.submit(write_published(one)).result()
    store.close()
    again = Store(database)
    known = PublishedData()
    for one in again.submit(read_published).result():
        known.add(one)
    assert known.visible("vision/eve") == [LABELS, FEATURES]
    assert known.visible("eve") == []
    assert known.met("vision/eve", ("data:features", "a", "data:none")) == ("data:features",)
    again.submit(forget_published(FEATURES)).result()
    assert again.submit(read_published).result() == [LABELS]
    known.remove(FEATURES)
    assert not known.is_there("vision/eve", "features")
    again.close()


def test_pages_of_usage(database: str) -> None:
    store = Store(database)
    store.submit(lambda connection: stored(connection, [1, 2, 2, 3], [1, 2, 1, 0])).result()
    newest = store.submit(lambda connection: read_used(connection, 0, 2)).result()
    assert [(row.job, row.stretches) for row in newest] == [("j1", 2), ("j2", 1)]
    older = store.submit(lambda connection: read_used(connection, 0, 2, "j1")).result()
    assert [row.job for row in older] == ["j0"]
    store.close()
