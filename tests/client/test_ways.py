"""The way to a pool: proxies of the environment, authorities of an organisation, and IPv6."""

from __future__ import annotations

import base64
import re
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from real_pool import PoolUnderTest

import djinn_lab
from djinn_lab.client import connection, trust, ways
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.ways import bracketed, proxy_for
from djinn_lab.errors import AuthenticationError, OptionError, PoolNotFound, PoolSilent
from djinn_lab.protocol.certificates import fingerprint

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "DJINN_POOL_CERTIFICATE")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


class _Tunnel(BaseHTTPRequestHandler):
    """Answers ``CONNECT`` as corporate proxies do, for those who have the password."""

    server: HttpProxy

    def do_CONNECT(self) -> None:
        expected = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        if self.headers.get("Proxy-Authorization") != f"Basic {expected}":
            self.send_error(407)
            return
        self.server.asked.append(self.path)
        with socket.create_connection(self.server.target) as onward:
            self.send_response(200)
            self.end_headers()
            self._pass_on(onward)
        self.close_connection = True

    def _pass_on(self, onward: socket.socket) -> None:
        other = {self.connection: onward, onward: self.connection}
        cuts = self.server.cuts
        while self.server.cuts == cuts:
            for one in select.select(list(other), [], [], 0.05)[0]:
                data = one.recv(2**16)
                if not data:
                    return
                other[one].sendall(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


PASSWORD = "s/e:c@r#e?t%&ü"


class HttpProxy(ThreadingHTTPServer):
    """Leads every name to ``target``, so that no name needs to exist. ``cuts``: a tunnel
    ends when it is changed."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Tunnel)
        self.target = target
        self.cuts = 0
        self.asked: list[str] = []
        self.url = f"http://ann:{quote(PASSWORD, safe='')}@{bracketed(host)}:{self.server_port}"


@contextmanager
def proxy_to(pool: PoolUnderTest, host: str = "127.0.0.1") -> Iterator[HttpProxy]:
    server = HttpProxy(("127.0.0.1", int(pool.info.url.rpartition(":")[2])), host)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def proxy(tls_pool: PoolUnderTest) -> Iterator[HttpProxy]:
    with proxy_to(tls_pool) as server:
        yield server


@pytest.mark.processes
def test_a_cell_and_its_uploads_go_by_the_proxy_of_the_environment(
    tls_pool: PoolUnderTest, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "host_id", lambda: "another host")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    url, known = "https://pool.example.invalid:8700", fingerprint(tls_pool.info.certificate)
    session = djinn_lab.connect(url, token=tls_pool.info.token, certificate=known)
    large = torch.arange(3_000_000.0)
    with session.capture():
        total = (large.cuda() * 2)[-1].item()
    assert total == 2 * 2_999_999
    assert session.pool.status().ready
    session.close()
    assert set(proxy.asked) == {"pool.example.invalid:8700"}
    assert len(proxy.asked) >= 4  # its certificate, the session, tensors, requests


@pytest.mark.processes
@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_proxy_and_a_pool_may_be_addresses_of_ipv6(
    tls_pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "host_id", lambda: "another host")
    url, known = "https://[2001:db8::5]:8700", fingerprint(tls_pool.info.certificate)
    with proxy_to(tls_pool, "::1") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        session = djinn_lab.connect(url, token=tls_pool.info.token, certificate=known)
        with session.capture():
            assert torch.ones(100_000).cuda().sum().item() == 100_000
        assert session.pool.status().ready
        session.close()
        assert "[2001:db8::5]:8700" in proxy.asked


@pytest.mark.processes
def test_a_proxy_that_cuts_its_tunnels_after_a_while_costs_no_cell(
    tls_pool: PoolUnderTest, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "host_id", lambda: "another host")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    known = fingerprint(tls_pool.info.certificate)
    session = djinn_lab.connect("https://pool.example.invalid", token=tls_pool.info.token, certificate=known)
    own, x = session.welcome.session, torch.ones(200, 200)
    with session.capture():
        kept = torch.full((3,), 2.0).cuda()
        for _ in range(3):
            proxy.cuts += 1
            for _ in range(20):
                x = (x @ x).clamp_(-1, 1)
            assert x.max().item() == 1
        assert (kept + 1).tolist() == [3.0, 3.0, 3.0]
    assert session.welcome.session == own
    session.close()
    assert len(proxy.asked) >= 4


@pytest.mark.processes
def test_a_proxy_that_refuses_is_named_without_its_password(
    proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("ann:", "ann:wrong"))
    for ask in (
        lambda: PoolClient("https://pool.example.invalid", "x").status(),
        lambda: PoolClient("https://pool.example.invalid", "x", f"sha256:{'0' * 64}"),
        lambda: connection.PoolConnection("https://pool.example.invalid", "x", "x", "2.9"),
    ):
        with pytest.raises((PoolNotFound, PoolSilent), match="407") as caught:
            ask()
        assert f"by the proxy http://127.0.0.1:{proxy.server_port} " in str(caught.value)
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "none", "found"),
    [
        ("https://pool.example", "", "http://secure:3128"),
        ("http://pool.example:8700", "", "http://plain:3128"),
        ("https://pool.example", "pool.example", None),
        ("https://gpu.pool.example:8700", ".pool.example", None),
        ("https://gpu.pool.example:8700", "gpu.pool.example:8700", None),
        ("https://pool.example", "*", None),
        ("https://10.1.2.3", "other.example,10.1.2.3", None),
        ("https://notpool.example", "pool.example", "http://secure:3128"),
        ("http://localhost:8700", "", None),
        ("https://127.0.0.1:8700", "", None),
        ("https://[::1]:8700", "", None),
        ("https://[2001:db8::5]:8700", "2001:db8::5", None),
        ("https://[2001:db8::5]:8700", "[2001:db8::5]", None),
        ("https://[2001:db8::5]:8700", "[2001:DB8:0:0::5]:8700", None),
        ("https://[2001:db8::5]:8700", "[2001:db8::5]:443", "http://secure:3128"),
        ("https://[2001:db8::5]", "[2001:db8::5]:443", None),
        ("https://[2001:db8::5]", "2001:db8::/32", None),
        ("https://[2001:db9::5]", "2001:db8::/32, 10.0.0.0/8", "http://secure:3128"),
        ("https://10.1.2.3:8700", "192.168.0.0/16, 10.0.0.0/8", None),
        ("https://11.1.2.3:8700", "10.0.0.0/8", "http://secure:3128"),
        ("https://gpu.pool.example", "*.pool.example", None),
        ("https://pool.example", "*.pool.example", "http://secure:3128"),
        ("https://GPU.Pool.Example", "Pool.EXAMPLE", None),
        ("https://pool.example", "pool.example:443", None),
        ("https://pool.example", "pool.example:8700", "http://secure:3128"),
        ("https://gpu.pool.example:8700", ".pool.example:8700", None),
    ],
)
def test_no_proxy_names_what_is_reached_without(
    url: str, none: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "plain:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://secure:3128")
    monkeypatch.setenv("NO_PROXY", none)
    assert proxy_for(url) == found


@pytest.mark.parametrize("proxy", ["socks5://ann:secret@proxy:1080", "https://proxy", "http://"])
def test_a_proxy_of_another_kind_is_refused_with_what_to_do(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(OptionError, match="is no HTTP proxy") as caught:
        PoolClient("https://pool.example", "x").status()
    assert "NO_PROXY" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "proxy",
    [
        "http://ann:se#cret@proxy:3128",
        "http://ann:se/cret@proxy:3128",
        "http://ann:se?cret@proxy:3128",
        "http://ann:se]cret@proxy:3128",
        "http://ann:secret@proxy:port",
        "ann:secret@[::1:3128",
    ],
)
def test_a_proxy_whose_password_is_not_quoted_is_refused_and_not_shown(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    for ask in (
        lambda: PoolClient("https://pool.example", "x").status(),
        lambda: connection.PoolConnection("https://pool.example", "x", "x", "2.9"),
    ):
        with pytest.raises(OptionError, match="HTTPS_PROXY") as caught:
            ask()
        assert "%40 for @" in str(caught.value)
        assert not {"cret", "se", "ann"} & set(re.findall(r"\w+", str(caught.value)))


@pytest.mark.parametrize(
    ("proxy", "found"),
    [
        ("http://ann:p@ss@proxy:3128", "http://ann:p%40ss@proxy:3128"),
        ("ann:50%@proxy", "http://ann:50%25@proxy"),
        ("http://ann@[::1]:3128/", "http://ann:@[::1]:3128"),
        ("http://[fe80::1]", "http://[fe80::1]"),
    ],
)
def test_user_and_password_of_a_proxy_are_quoted_for_all_that_read_them(
    proxy: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    assert proxy_for("https://pool.example") == found


@pytest.mark.processes
def test_a_pool_is_proven_by_the_authorities_of_an_organisation(
    tls_pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(tls_pool.info.certificate)
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(trust, "public_context", ssl.create_default_context)  # not the one of other tests
    with pytest.raises(AuthenticationError, match="SSL_CERT_FILE"):
        PoolClient(tls_pool.info.url, tls_pool.info.token).status()
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    session = djinn_lab.connect(tls_pool.info.url, token=tls_pool.info.token)
    with session.capture():
        assert torch.ones(3).cuda().sum().item() == 3
    assert session.pool.status().ready
    session.close()


@pytest.mark.processes
@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_pool_is_reached_by_ipv6(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, host="::1", tls=True) as running:
        assert running.info.url.startswith("https://[::1]:")
        session = djinn_lab.connect(running.info.url, token=running.info.token)
        with session.capture():
            assert torch.ones(3).cuda().sum().item() == 3
        assert session.pool.status().ready
        session.close()
        known = fingerprint(running.info.certificate)
        assert PoolClient(running.info.url, running.info.token, known).status().ready


def test_words_about_a_way_never_have_a_password() -> None:
    assert ways.without_password("http://ann:secret@proxy:3128") == "http://proxy:3128"
