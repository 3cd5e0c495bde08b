"""The certificate by which a pool or a dashboard proves what it is: made at its first start, or given."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from djinn_lab.errors import OptionError

CERTIFICATE_FILE = "certificate.pem"
KEY_FILE = "key.pem"
VALID_FOR = timedelta(days=825)
RENEWED_BEFORE = timedelta(days=30)


class ServerCertificate(msgspec.Struct, frozen=True):
    """``certificate``, ``key``: paths of PEM files. ``pem``: of the server's own certificate, without those
    of its authorities."""

    certificate: str
    key: str
    pem: str


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``. Raises OptionError for a name that is none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OptionError(
            f"--host {host}: {error}.", "Give an address of this machine, or 0.0.0.0 for all."
        ) from None
    return all(ipaddress.ip_address(address[4][0]).is_loopback for address in found)


def encrypts(host: str, tls: bool | None, certificate: str | None, key: str | None, insecure: bool) -> bool:
    """Return whether a server uses TLS: off loopback, unless that is refused by name. Raises OptionError for
    options that do not go together."""
    if (certificate is None) != (key is None):
        raise OptionError("A TLS certificate needs its key.", "Give both --tls-certificate and --tls-key.")
    if certificate is not None and key is not None:
        if tls is False or insecure:
            raise OptionError("--tls-certificate was given together with --no-tls.", "Leave one of them out.")
        given_certificate(certificate, key)
        return True
    if is_loopback(host):
        return bool(tls)
    if tls is False and not insecure:
        raise OptionError(
            f"Other machines reach {host}: without TLS their tokens and tensors would travel readable.",
            "Leave --no-tls out, or accept that with --insecure-without-tls.",
        )
    return not insecure


def given_certificate(certificate: str, key: str) -> ServerCertificate:
    """Read a certificate, with those of its authorities behind it, and its key. Raises OptionError when they
    cannot be used."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=_no_password)
        first = x509.load_pem_x509_certificates(Path(certificate).read_bytes())[0]
    except (OSError, ValueError) as error:
        raise OptionError(
            f"The certificate {certificate} with the key {key} cannot be used: {error}.",
            "Give both as PEM files that belong together, the key without a password.",
        ) from None
    return ServerCertificate(str(Path(certificate).absolute()), str(Path(key).absolute()), _pem(first))


def own_certificate(directory: Path, host: str) -> ServerCertificate:
    """Find the certificate in ``directory``, or make one that lasts for two years: also when the one there
    ends soon, or does not name ``host``."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = directory / CERTIFICATE_FILE, directory / KEY_FILE
    names = _names(host)
    if not (certificate.exists() and key.exists() and _serves(certificate, names)):
        _make(certificate, key, names)
    return given_certificate(str(certificate), str(key))


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _names(host: str) -> list[x509.GeneralName]:
    names = dict.fromkeys(("localhost", socket.gethostname(), socket.getfqdn()))
    addresses = dict.fromkeys(("127.0.0.1", "::1"))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        names[host] = None
    else:
        if not address.is_unspecified:
            addresses[str(address)] = None
    found: list[x509.GeneralName] = [x509.DNSName(name) for name in names if name and name.isascii()]
    return [*found, *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses)]


def _serves(certificate: Path, names: list[x509.GeneralName]) -> bool:
    try:
        known = x509.load_pem_x509_certificate(certificate.read_bytes())
        named = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    lasts = known.not_valid_after_utc > datetime.now(UTC) + RENEWED_BEFORE
    return lasts and set(names) <= set(named)


def _make(certificate: Path, key: Path, names: list[x509.GeneralName]) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Djinn Lab")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    plain = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(key, plain)
    _write(certificate, _pem(made).encode())


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
