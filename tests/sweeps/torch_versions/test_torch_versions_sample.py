"""A fixed sample of ``make sweep-torch``: the installed torch with a pool of its own, by real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sweeps.torch_versions.environments import Environment, resolved
from sweeps.torch_versions.pairs import KERNELS_DIFFER, LACKING, Eager, changed, eager_of, judged, run_pair

OPERATORS = 8


@pytest.mark.processes
def test_a_client_and_a_pool_of_one_torch_are_right() -> None:
    here = Environment("here", Path(sys.executable))
    found = run_pair(here, here, "native", OPERATORS)
    verdict = judged(found, eager_of(found))
    assert verdict["passed"], verdict
    assert verdict["calls"] >= OPERATORS
    assert verdict["recorder"] == "native"
    assert set(verdict["programs"]) >= {"training", "generate", "make_fx", "ldl_solve"}
    of_the_same = changed(found, found)
    assert not any(of_the_same.values()), of_the_same


def pair(outcome: str, reason: str = "", eager: str = "a") -> dict[str, object]:
    item = {"outcome": outcome, "reason": reason, "inputs": "same", "eager": eager}
    common = {"torch": "1", "pool": ["2"], "recorder": "native", "programs": {}, "table": []}
    return {**common, "operators": {"sinh: call": item}}


def test_a_difference_is_explained_by_other_kernels_alone() -> None:
    found = pair("wrong value")
    assert not judged(found, {"sinh: call": Eager("same", "a")})["passed"]
    assert not judged(found, {"sinh: call": Eager("others", "b")})["passed"]
    explained = judged(found, {"sinh: call": Eager("same", "b")})
    assert explained["passed"]
    assert explained["not_equal"][0]["outcome"] == KERNELS_DIFFER
    assert not judged(pair("wrong layout"), {"sinh: call": Eager("same", "b")})["passed"]
    assert not judged({"died": "exit code -11"}, {})["passed"]


def test_a_refusal_that_names_both_versions_is_right() -> None:
    said = "The op aten.qr.default is not in torch 2, which the pool has; this notebook has torch 1."
    verdict = judged(pair("raised where eager does not", said), {})
    assert verdict["passed"]
    assert verdict["outcomes"] == {LACKING: 1}
    assert not judged(pair("raised where eager does not", "KeyError: 'grad'"), {})["passed"]


def test_changes_between_versions_are_named() -> None:
    one, other = pair("equal"), pair("equal", eager="b")
    one["table"], other["table"] = (
        ["aten.qr.default self:Tensor", "aten.x.y grad:Tensor"],
        ["aten.x.y g:Tensor"],
    )
    found = changed(one, other)
    assert found["only in the first"] == ["aten.qr.default"]
    assert set(found["other arguments"]) == {"aten.x.y"}
    assert found["other results"] == ["sinh: call"]


def test_a_named_version_is_taken_as_it_is() -> None:
    assert resolved("2.13.0") == "2.13.0"
