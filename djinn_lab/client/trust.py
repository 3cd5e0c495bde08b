"""How a client knows that a pool is the one it means, before it sends a token.

A certificate is given by its fingerprint (``sha256:...``, several separated by commas) or by a file of the
certificate or of its authorities. Without either, the runtime file of this machine's pool has it, and
otherwise the public authorities decide.
"""

from __future__ import annotations

import os
import re
import ssl
from functools import cache
from urllib.parse import urlsplit

from djinn_lab.client.ways import by_proxy, open_way
from djinn_lab.errors import NotProven, OptionError, PoolSilent
from djinn_lab.protocol.certificates import CERTIFICATE_VARIABLE, FINGERPRINT, fingerprint, pinned_context
from djinn_lab.protocol.runtime_file import read_runtime

ASK_TIMEOUT_S = 10.0
ADVICE = (
    f"Set {CERTIFICATE_VARIABLE} to what `djinn-lab pool status` says on the pool's host, or to the file of "
    "its certificate; or SSL_CERT_FILE to the authorities that your organisation signs with."
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@cache
def public_context() -> ssl.SSLContext:
    """Return what trusts the public authorities: one for all clients, as it takes 25 ms to read them."""
    return ssl.create_default_context()


def tls_context(url: str, certificate: str | None = None) -> ssl.SSLContext | None:
    """Return what a connection to ``url`` must verify, None for one in the clear. ``certificate``: default
    ``DJINN_POOL_CERTIFICATE``. Raises OptionError for one that cannot be read, NotProven when the
    pool has another certificate, PoolSilent when it is asked for it and does not answer."""
    if urlsplit(url).scheme != "https":
        return None
    given = certificate or os.environ.get(CERTIFICATE_VARIABLE)
    if given and given.startswith(FINGERPRINT):
        return pinned_context(_certificate_with(url, given))
    if given:
        try:
            context = ssl.create_default_context(cafile=given)
        except OSError as error:
            raise OptionError(f"The certificate file {given} cannot be read: {error}.", ADVICE) from None
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
    info = read_runtime()
    if info is not None and info.certificate and info.url == url.rstrip("/"):
        return pinned_context(info.certificate)
    return public_context()


def known_fingerprint(url: str, certificate: str | None = None) -> str:
    """Return the fingerprint by which a pool is known, empty where it is not known by one."""
    given = certificate or os.environ.get(CERTIFICATE_VARIABLE)
    if given:
        return given if given.startswith(FINGERPRINT) else ""
    info = read_runtime()
    return fingerprint(info.certificate) if info and info.certificate and info.url == url else ""


def not_proven(url: str, error: BaseException) -> NotProven | None:
    """Return the error to raise when ``error`` comes from a certificate that is not the pool's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return NotProven(
                f"the pool at {url} has not proven what it is ({cause.verify_message}); no token was sent.",
                ADVICE,
            )
        cause = cause.__cause__ or cause.__context__
    return None


def _certificate_of(url: str) -> str:
    """Ask a server for its certificate, whatever it is. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with open_way(url, ASK_TIMEOUT_S) as plain:
        with context.wrap_socket(plain, server_hostname=urlsplit(url).hostname) as encrypted:
            found = encrypted.getpeercert(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(found or b"")


def _certificate_with(url: str, fingerprints: str) -> str:
    """Ask the pool for its certificate, and return it if it has one of the fingerprints."""
    wanted = [one.strip().lower() for one in fingerprints.split(",")]
    if not all(one.startswith(FINGERPRINT) and _DIGEST.fullmatch(one[len(FINGERPRINT) :]) for one in wanted):
        raise OptionError(
            f"{fingerprints!r} is no fingerprint: {FINGERPRINT} and 64 hexadecimal digits.", ADVICE
        )
    address = urlsplit(url)
    try:
        pem = _certificate_of(url)
    except OSError as error:
        raise PoolSilent(
            f"no pool answers at {address.netloc}{by_proxy(url)} ({error}).",
            "Check DJINN_POOL, and that the pool runs.",
        ) from None
    if fingerprint(pem) not in wanted:
        raise NotProven(
            f"the pool at {url} has another certificate, {fingerprint(pem)}, so no token was sent.",
            f"If its certificate was renewed: {ADVICE}",
        )
    return pem
