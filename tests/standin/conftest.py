"""Builds the stand-in accelerator before its first test, and ends the template process after its last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from isolated import end_template
from standin.building import CannotBuild, build


@pytest.fixture(scope="session", autouse=True)
def built_standin() -> Iterator[None]:
    try:
        build()
    except CannotBuild as error:
        pytest.skip(f"the stand-in is not built: {error}")
    yield
    end_template()
