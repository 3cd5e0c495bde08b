"""Logins to the dashboard, in a real browser."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import gethostname
from typing import Any

import httpx
import pytest
from dashboard_serving import free_port, start_dashboard, stop
from device_kind import KIND
from real_pool import PoolUnderTest

from djinn_lab.client.rest import PoolClient
from djinn_lab.pool.launch import stop_pool
from djinn_lab.protocol.certificates import fingerprint, pinned_context
from djinn_lab.protocol.dashboard_login import is_good, make_code, with_code

pytestmark = [pytest.mark.browser, pytest.mark.processes]


@pytest.fixture(scope="module")
def ann(pool: PoolUnderTest) -> str:
    """Return the token of a second user, a viewer."""
    return pool.rest.create_user("ann", "viewer").token


@contextmanager
def tab(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1360, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(address, wait_until="commit")
    yield page
    context.close()


def log_in(page: Any, token: str) -> None:
    page.wait_for_selector("text=This pool has several users")
    page.fill("input[type=password]", token)
    page.click("role=button[name='Log in']")


def test_a_stranger_sees_nothing_but_the_login(
    chromium: Any, dashboard_url: str, finished_job: str, ann: str
) -> None:
    with tab(chromium, dashboard_url + "?page=jobs") as page:
        log_in(page, "guess")
        page.wait_for_selector("text=The pool refused this token")
        page.wait_for_selector("text=djinn-lab users token add NAME")
        assert page.locator(f"text={KIND}:0").count() == 0
        assert page.locator("role=tab").count() == 0
    html = httpx.get(dashboard_url, trust_env=False, timeout=60).text
    assert finished_job[:8] not in html
    assert f"{KIND}:0" not in html


def test_the_login_keeps_what_is_typed_while_the_server_lives(
    chromium: Any, dashboard_url: str, ann: str
) -> None:
    """A page that hears nothing loads itself again after eight seconds."""
    with tab(chromium, dashboard_url) as page:
        page.wait_for_selector("text=This pool has several users")
        page.fill("input[type=password]", ann)
        page.evaluate("window.heard = window.__djinnBeat")
        page.wait_for_function("window.__djinnBeat > window.heard")
        assert page.input_value("input[type=password]") == ann


def test_login_page_fits_a_narrow_window_without_an_empty_badge(
    chromium: Any, dashboard_url: str, ann: str
) -> None:
    with tab(chromium, dashboard_url) as page:
        page.set_viewport_size({"width": 420, "height": 800})
        page.wait_for_selector("role=button[name='Log in']")
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.locator(".badge").is_hidden()


def test_the_address_of_the_command_lets_its_user_in_once(
    chromium: Any, dashboard_url: str, finished_job: str, ann: str
) -> None:
    address = with_code(dashboard_url + "?page=jobs")
    with tab(chromium, address) as page:
        page.wait_for_selector(f"text={finished_job[:8]}")
        assert "login=" not in page.url
        page.goto(dashboard_url)
        page.wait_for_selector(f".card >> text={KIND}:0")
        page.wait_for_selector("role=tab[name='Wizard']")
    with tab(chromium, address) as page:
        page.wait_for_selector("text=This pool has several users")
        page.wait_for_selector("text=This address does not let you in any more")


def test_another_user_comes_in_by_token_and_sees_what_it_may(
    chromium: Any, dashboard_url: str, finished_job: str, ann: str, pool: PoolUnderTest
) -> None:
    with tab(chromium, dashboard_url) as page:
        log_in(page, ann)
        page.wait_for_selector(f".card >> text={KIND}:0")
        page.wait_for_selector("[title*='as ann (viewer)']")
        assert page.locator("role=tab[name='Wizard']").count() == 0
        page.goto(dashboard_url + "?page=wizard")
        page.wait_for_selector("text=The page Wizard is not shown after a login by token")
        page.wait_for_selector(f".card >> text={KIND}:0")
        page.wait_for_selector("[title*='as ann (viewer)']")
        assert page.locator("text=The page Wizard is not shown").is_visible()
        assert ann not in page.content()
        pool.rest.revoke_token("ann", "first")
        page.wait_for_selector("text=Your login has ended")
        assert page.locator(f"text={KIND}:0").count() == 0


def test_user_of_the_dashboard_is_led_to_the_wizard_after_a_login_by_token(
    chromium: Any, dashboard_url: str, ann: str, pool: PoolUnderTest
) -> None:
    with tab(chromium, dashboard_url) as page:
        log_in(page, pool.info.token)
        page.wait_for_selector(f".card >> text={KIND}:0")
        page.click("role=tab[name='Wizard']")
        page.wait_for_selector("text=The page Wizard is not shown after a login by token")
        page.wait_for_selector("text=the address that djinn-lab dashboard prints")
        page.wait_for_selector("role=tab[name='Wizard'][selected]")
        page.click("role=tab[name='Overview']")
        page.wait_for_selector(f".card >> text={KIND}:0")
        assert page.locator("text=The page Wizard is not shown").count() == 0


def test_login_by_token_finds_the_pool_again_at_another_port(
    chromium: Any, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("moves")
    port = free_port()
    with PoolUnderTest(folder, f"{KIND}:1") as moving:
        token, before = moving.rest.create_user("bea", "viewer").token, moving.info.url
        server = start_dashboard(port, dict(os.environ), folder / "serve.log")
        try:
            with tab(chromium, f"http://127.0.0.1:{port}/dashboard") as page:
                log_in(page, token)
                page.wait_for_selector("[title*='as bea (viewer)']")
                moving.rest.close()
                stop_pool()
                page.wait_for_selector("text=No pool")
                moving.start()
                assert moving.info.url != before
                page.wait_for_selector(f"[title*='Pool {moving.info.pool} ']")
                page.wait_for_selector(f".card >> text={KIND}:0")
        finally:
            stop(server)


def test_the_command_prints_an_address_with_a_login(
    chromium: Any, pool: PoolUnderTest, ann: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert server.stdout is not None
    try:
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        port = int(address.split(":")[2].partition("/")[0])
        _until_it_listens(port)
        with tab(chromium, address) as page:
            page.wait_for_selector(f".card >> text={KIND}:0")
    finally:
        server.terminate()
        server.wait(10)
        server.stdout.close()


def test_a_dashboard_for_other_machines_asks_even_where_the_pool_has_one_user(
    chromium: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("alone")
    with PoolUnderTest(folder, f"{KIND}:1") as alone:
        for address, asks in (("127.0.0.1", False), ("0.0.0.0", True)):
            port = free_port()
            server = start_dashboard(port, dict(os.environ), folder / "serve.log", address)
            try:
                with tab(chromium, f"http://127.0.0.1:{port}/dashboard") as page:
                    if asks:
                        log_in(page, alone.info.token)
                    page.wait_for_selector(f".card >> text={KIND}:0")
            finally:
                stop(server)


@contextmanager
def served(tmp_path: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run the command. Yields the address without its code, and the whole output so far."""
    command = [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--port", "0", *options]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert server.stdout is not None
    try:
        lines = [server.stdout.readline() for _ in range(3)]
        address = next(word for word in lines[0].split() if word.startswith("http"))
        _until_it_listens(int(address.split(":")[2].partition("/")[0]))
        yield address.partition("?")[0], "".join(lines)
    finally:
        server.terminate()
        server.wait(10)
        server.stdout.close()


def test_a_dashboard_for_other_machines_is_encrypted_and_takes_a_token(
    chromium: Any, pool: PoolUnderTest, tmp_path: Path
) -> None:
    token = pool.rest.create_user("encrypted", "viewer").token
    with served(tmp_path, "--host", "0.0.0.0") as (address, said):
        port = int(address.split(":")[2].partition("/")[0])
        assert address == f"https://{gethostname()}:{port}/dashboard"
        pem = ssl.get_server_certificate(("127.0.0.1", port))
        assert f"Its certificate: {fingerprint(pem)}" in said
        here = f"https://127.0.0.1:{port}/dashboard"
        assert httpx.get(here, verify=pinned_context(pem), trust_env=False, timeout=60).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(here, trust_env=False, timeout=60)
        with pytest.raises(httpx.HTTPError):
            httpx.get(here.replace("https", "http"), trust_env=False, timeout=60)
        with tab(chromium, here, ignore_https_errors=True) as page:
            log_in(page, token)
            page.wait_for_selector(f".card >> text={KIND}:0")
            [cookie] = page.context.cookies()
            assert cookie["secure"]


@pytest.mark.parametrize("options", [("--no-tls",), ("--tls-certificate", "x.pem")])
def test_a_dashboard_in_the_clear_for_other_machines_is_refused(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--host", "0.0.0.0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--insecure-without-tls" in done.stderr or "--tls-key" in done.stderr


def test_codes_of_others_and_old_ones_are_not_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: PoolUnderTest
) -> None:
    with closing(PoolClient(pool.info.url, pool.info.token)):
        code = make_code()
    assert is_good(code)
    assert not is_good(code[:-1] + ("0" if code[-1] != "0" else "1"))
    until, rest = code.split("-", 1)
    assert not is_good(f"{int(until) + 1}-{rest}")
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    assert not is_good(code)
    for bad in ("", "-", "x", "1-2", "é-é-é"):
        assert not is_good(bad)


def _until_it_listens(port: int) -> None:
    import socket
    import time

    deadline_s = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            return
