"""``%%djinn --after``: what it may name, and what is refused before anything is sent."""

from __future__ import annotations

import pytest

from djinn_lab.config import default_profile
from djinn_lab.errors import OptionError
from djinn_lab.magics.options import default_options, parse_options

DEFAULTS = default_options(default_profile())


def test_several_are_given_with_commas_or_one_by_one() -> None:
    line = "--after 1fdb,nb12:checkpoint=epoch-3 --after 'data:my features'"
    terms = parse_options(f"{line} --after-count 2 --after-timeout 10min", "%%djinn", DEFAULTS).terms
    assert terms.after == ("1fdb", "nb12:checkpoint=epoch-3", "data:my features")
    assert (terms.after_count, terms.after_timeout_s) == (2, 600.0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--after 1fdb:soon", "no dependency; write JOB, JOB:any"),
        ("--after a,", "no dependency"),
        ("--after a --after-count 2", "2 of its 1 dependencies"),
        ("--after-timeout 5s", "a limit of waiting without anything to wait for"),
    ],
)
def test_invalid_after_options_are_refused_at_the_cell(line: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_options(line, "%%djinn", DEFAULTS)


@pytest.mark.parametrize("option", ["--timeout 1e400", "--progress-after nan", "--progress-after=-inf"])
def test_seconds_that_are_no_number_are_refused_at_the_option(option: str) -> None:
    with pytest.raises(OptionError, match=option.replace("=", " ").split()[0]):
        parse_options(option, "%%djinn", DEFAULTS)
