"""Which parts of a message an older pool would ignore."""

from __future__ import annotations

import msgspec
import pytest

from djinn_lab.jobs import NO_TERMS, Terms
from djinn_lab.protocol.compatibility import unsupported_options
from djinn_lab.protocol.messages import CLIENT_VERSIONS, PROTOCOL_VERSION

ASKED = {
    "gang": Terms(gang=2),
    "gang_min": Terms(gang=2, gang_min=2),
    "after": Terms(after=("abc",)),
    "after_any": Terms(after_any=True),
    "deadline_s": Terms(deadline_s=1.0),
    "timeout_s": Terms(timeout_s=1.0),
    "after_count": Terms(after=("abc", "def"), after_count=1),
    "after_timeout_s": Terms(after=("abc",), after_timeout_s=1.0),
    "target": Terms(target="cpu:0"),
    "tolerates": Terms(tolerates=("vision",)),
    "objective": Terms(objective="memory"),
    "reserve_fraction": Terms(reserve_fraction=0.2),
}


@pytest.mark.parametrize("field", Terms.__struct_fields__)
def test_every_term_is_understood_since_some_version_and_from_then_on(field: str) -> None:
    assert field in ASKED, "a new term: say which protocol has it, and try it here"
    understood = [not unsupported_options(ASKED[field], version) for version in CLIENT_VERSIONS]
    assert understood == sorted(understood)
    assert understood[0] is False, "protocol 1 had no terms"
    assert understood[-1] is True


@pytest.mark.parametrize(
    ("terms", "version", "unknown"),
    [
        (Terms(gang=4, gang_min=2, deadline_s=5), 3, ("--gang", "--deadline")),
        (Terms(gang=4, gang_min=2, deadline_s=5), 4, ()),
        (Terms(gang=4, target="gpu=h200", tolerates=("a", "b")), 4, ("--target", "--tolerate")),
        (Terms(after=("abc",)), 4, ()),
        (Terms(after=("abc", "def:checkpoint=epoch-3")), 4, ("--after with a condition",)),
        (
            Terms(after=("data:features",), after_timeout_s=9),
            4,
            ("--after-timeout", "--after with a condition"),
        ),
        (NO_TERMS, 1, ()),
    ],
)
def test_options_are_named(terms: Terms, version: int, unknown: tuple[str, ...]) -> None:
    assert unsupported_options(terms, version) == unknown
    assert unsupported_options(terms, PROTOCOL_VERSION) == ()


def test_a_term_that_is_none_is_no_term() -> None:
    known = msgspec.msgpack.encode(Terms(target="cpu:0"))
    assert msgspec.msgpack.decode(known, type=Terms).target == "cpu:0"
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        msgspec.convert({"target": "cpu:0", "colour": "red"}, Terms)
