"""Encrypted pools: certificates made or given, and clients that send no token to any other server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from device_kind import KIND
from impostor import HOST, Impostor
from real_pool import PoolUnderTest
from typer.testing import CliRunner

import djinn_lab
from djinn_lab.cli.app import build_app
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import AuthenticationError, OptionError, PoolLost
from djinn_lab.pool import certificates
from djinn_lab.pool.certificates import own_certificate
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.certificates import CERTIFICATE_VARIABLE, fingerprint


@pytest.fixture(autouse=True)
def no_pool_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    for name in ("DJINN_POOL", "DJINN_TOKEN", CERTIFICATE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("tls"), f"{KIND}:1", tls=True) as running:
        yield running


def compute(session: Any) -> None:
    large = torch.arange(300_000.0)
    with session.capture():
        found = (large * 2).cpu()
    assert torch.equal(found, torch.arange(300_000.0) * 2)


@pytest.mark.processes
def test_a_local_client_pins_the_certificate_of_the_runtime_file(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(pool.directory))
    assert pool.info.url.startswith("https://127.0.0.1:")
    session = djinn_lab.connect()
    compute(session)
    assert session.pool.status().ready
    session.close()
    said = CliRunner().invoke(build_app(), ["pool", "status"]).output
    assert f"Certificate: {fingerprint(pool.info.certificate)}" in said
    added = CliRunner().invoke(build_app(), ["users", "add", "tls-ann"]).output
    assert f"{CERTIFICATE_VARIABLE}={fingerprint(pool.info.certificate)}" in added


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["fingerprint", "file", "environment"])
def test_a_client_elsewhere_is_given_the_certificate(
    pool: PoolUnderTest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: str | None = fingerprint(pool.info.certificate)
    if kind == "file":
        given = str(pool.directory / "tls" / "certificate.pem")
    elif kind == "environment":
        monkeypatch.setenv(CERTIFICATE_VARIABLE, given or "")
        given = None
    session = djinn_lab.connect(pool.info.url, token=pool.info.token, certificate=given)
    compute(session)
    assert session.pool.status().ready
    session.close()


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Impostor]:
    server = Impostor(tmp_path / "other")
    yield server
    server.close()


def websocket(url: str, certificate: str | None) -> None:
    djinn_lab.connect(url, token="secret", certificate=certificate)


def rest(url: str, certificate: str | None) -> None:
    PoolClient(url, "secret", certificate).status()


@pytest.mark.parametrize("ask", [websocket, rest])
@pytest.mark.parametrize("known", ["nothing", "fingerprint", "file"])
def test_a_wrong_certificate_is_refused_before_the_token_is_sent(
    impostor: Impostor, tmp_path: Path, ask: Callable[[str, str | None], None], known: str
) -> None:
    expected = own_certificate(tmp_path / "pool", HOST)
    given = {"nothing": None, "fingerprint": fingerprint(expected.pem), "file": expected.certificate}[known]
    with pytest.raises(AuthenticationError, match="no token was sent") as caught:
        ask(impostor.url, given)
    assert CERTIFICATE_VARIABLE in str(caught.value)
    assert impostor.heard == b""


def test_a_fingerprint_of_several_is_enough_and_a_bad_one_says_so(impostor: Impostor) -> None:
    both = f"sha256:{'0' * 64},{fingerprint(impostor.pem)}"
    assert PoolClient(impostor.url, "secret", both).fingerprint == both
    with pytest.raises(OptionError, match="64 hexadecimal digits"):
        PoolClient(impostor.url, "secret", "sha256:12")
    with pytest.raises(OptionError, match="cannot be read"):
        PoolClient(impostor.url, "secret", "/nowhere.pem")


def test_the_certificate_is_kept_private_and_renewed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = own_certificate(tmp_path / "tls", HOST)
    assert own_certificate(tmp_path / "tls", HOST) == first
    assert Path(first.key).stat().st_mode & 0o077 == 0
    other = own_certificate(tmp_path / "tls", "10.1.2.3")
    assert other.pem != first.pem
    monkeypatch.setattr(certificates, "RENEWED_BEFORE", certificates.VALID_FOR)
    assert own_certificate(tmp_path / "tls", "10.1.2.3").pem != other.pem
    names = x509.load_pem_x509_certificate(other.pem.encode()).extensions
    assert "10.1.2.3" in str(names.get_extension_for_class(x509.SubjectAlternativeName).value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0", "tls": False}, "travel readable"),
        ({"tls_certificate": "a.pem"}, "A TLS certificate needs its key"),
        ({"tls_certificate": "a.pem", "tls_key": "b.pem"}, "cannot be used"),
        ({"tls_certificate": "a", "tls_key": "b", "tls": False}, "given together with --no-tls"),
        ({"host": "no.such.host.invalid"}, "--host"),
    ],
)
def test_unsafe_or_impossible_addresses_are_refused_with_advice(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        start_pool(devices="cpu:1", **options)
    assert caught.value.advice


@pytest.mark.processes
@pytest.mark.parametrize("insecure", [False, True])
def test_a_pool_for_other_machines_encrypts_unless_refused_by_name(tmp_path: Path, insecure: bool) -> None:
    info = start_pool(devices="cpu:1", host="0.0.0.0", insecure_without_tls=insecure)
    try:
        assert info.url.startswith("http://127" if insecure else "https://127")
        assert bool(info.certificate) is not insecure
        assert PoolClient(info.url, info.token).status().ready
        with pytest.raises(OptionError, match="no effect"):
            CliRunner().invoke(build_app(), ["pool", "start", "--host", "127.0.0.1"], catch_exceptions=False)
    finally:
        stop_pool()


@pytest.mark.processes
def test_a_pool_with_a_given_certificate_is_verified_by_it(tmp_path: Path) -> None:
    given = own_certificate(tmp_path / "given", HOST)
    info = start_pool(devices="cpu:1", tls_certificate=given.certificate, tls_key=given.key)
    try:
        assert info.certificate == given.pem
        assert PoolClient(info.url, info.token).status().ready
        assert PoolClient(info.url, info.token, given.certificate).status().ready
        with pytest.raises(PoolLost):
            PoolClient(info.url.replace("https", "http"), info.token).status()
    finally:
        stop_pool()
    assert not os.path.exists(tmp_path / "tls")
