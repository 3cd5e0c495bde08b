"""Requests that schemathesis draws from the schema, right and wrong ones, with every role and without one."""

from __future__ import annotations

import itertools
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from pool_kit import Client, act, rest
from schemathesis import GenerationMode
from sweeps.api.schema import with_names
from websockets.exceptions import ConnectionClosed

from djinn_lab.pool.authentication import Role
from djinn_lab.protocol.runtime_file import RuntimeInfo

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
TIMEOUT_S = 60.0
EXAMPLES_MAX = 20
SAMPLE_EVERY = 500


@dataclass
class Found:
    """``resident``: megabytes of the server, sampled along the way."""

    answers: Counter[int] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.answers.total()


def tokens_of(info: RuntimeInfo) -> dict[str, str | None]:
    """Make a user for each role; none has no token at all."""
    owner = rest(info)
    made: dict[str, str | None] = {
        role.label: owner.create_user(f"a-{role.label}", role.label).token for role in Role
    }
    owner.close()
    return {**made, "owner": info.token, "none": None}


def sweep(info: RuntimeInfo, examples: int, steps: Iterator[int]) -> Found:
    """In each step call one operation with one role, ``examples`` times right or wrong. All pairs of them
    come in turn, with other examples each time."""
    found, tokens = Found(), tokens_of(info)
    raw = httpx.get(f"{info.url}/openapi.json", headers=_header(info.token), trust_env=False).json()
    with Client(info) as client, requests.Session() as web, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # schemathesis warns of what it cannot draw
        job = client.submit(act("sleep 3600"))
        threading.Thread(target=_drain, args=(client,), daemon=True).start()
        names = {"device": ["cpu:0"], "session": [client.session], "job": [job], "account": ["a", "a/b"]}
        described = with_names(raw, names)
        operations = [one.ok() for one in schemathesis.openapi.from_dict(described).get_all_operations()]
        turns = [
            (operation, asking, mode)
            for operation, asking in itertools.product(operations, tokens.items())
            for mode in MODES
            if mode is GenerationMode.POSITIVE or takes_more(described, operation)
        ]
        Random(1).shuffle(turns)
        for step in steps:
            operation, asking, mode = turns[step % len(turns)]
            _call(info, operation, mode, asking, examples, step, found, web)
            if step % SAMPLE_EVERY == 0:
                found.resident.append(resident_mb(info.pid))
    found.resident.append(resident_mb(info.pid))
    return found


def takes_more(schema: Mapping[str, Any], operation: Any) -> bool:
    """Return whether an operation can be called in a wrong way: every text is right in a path."""
    found = schema["paths"][operation.path][operation.method]
    return "requestBody" in found or any(one["in"] == "query" for one in found.get("parameters", ()))


def _drain(client: Client) -> None:
    with suppress(ConnectionClosed, OSError, EOFError):
        while True:
            with suppress(TimeoutError):
                client.receive()


def _call(
    info: RuntimeInfo,
    operation: Any,
    mode: GenerationMode,
    asking: tuple[str, str | None],
    examples: int,
    number: int,
    found: Found,
    web: requests.Session,
) -> None:
    role, token = asking

    @seed(crc32(f"{number} {operation.method} {operation.path} {role} {mode.name}".encode()))
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        try:
            answer = case.call(base_url=info.url, headers=_header(token), timeout=TIMEOUT_S, session=web)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # no client can send it
        except requests.exceptions.RequestException as error:
            _note(found, 0, role, case, f"{type(error).__name__}: {error}")
            return
        found.answers[answer.status_code] += 1
        if answer.status_code >= 500:
            _note(found, answer.status_code, role, case, answer.text)

    call()


def _note(found: Found, status: int, role: str, case: Any, text: str) -> None:
    found.answers[0] += status == 0
    if len(found.faults) < EXAMPLES_MAX:
        found.faults.append(
            {"status": status, "role": role, "call": case.as_curl_command()[:1000], "text": text[:500]}
        )


def tracebacks(log: Path) -> list[str]:
    """Return the ends of the tracebacks in a pool's log, each kind once."""
    text = log.read_text(errors="replace")
    found = re.findall(r"^Traceback.*?^\w[^\n]*", text, re.MULTILINE | re.DOTALL)
    return sorted({"\n".join(one.splitlines()[-4:])[:1000] for one in found})


def resident_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [kib] = re.findall(r"^VmRSS:\s*(\d+)", status, re.MULTILINE)
    return int(kib) // 1024


def until(minutes: float) -> Iterator[int]:
    """Count up, until the time is over."""
    ends_s, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < ends_s:
        yield number
        number += 1


def _header(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}
