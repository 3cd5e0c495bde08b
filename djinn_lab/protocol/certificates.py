"""A pool's certificate as both sides name and check it."""

from __future__ import annotations

import ssl
from hashlib import sha256

FINGERPRINT = "sha256:"
CERTIFICATE_VARIABLE = "DJINN_POOL_CERTIFICATE"


def fingerprint(pem: str) -> str:
    """Return ``sha256:`` and the digest of a certificate."""
    return FINGERPRINT + sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def pinned_context(pem: str) -> ssl.SSLContext:
    """Trust this certificate alone, whatever name it was made for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=pem)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
