"""A certificate authority of one's own for TLS (spec network 3), and the files of client identities.

Keys are on the curve P-256, which every TLS client takes; Ed25519 certificates are not yet accepted by
browsers. Keys and serial numbers come from OpenSSL's generator, the time from the caller.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sfsl.checksums import with_last_line, without_last_line, without_last_lines
from sfsl.durable import make_folder, system_errors_as
from sfsl.errors import InputError, KeyFileError
from sfsl.service.identities import read_secret, write_new

AUTHORITY = "authority"
MOST_SERVER_DAYS = 825  # what TLS clients take from a private authority
MOST_AUTHORITY_DAYS = 36_500
_BACKDATED = timedelta(hours=1)  # clients' clocks may be behind
_LARGEST = 1 << 20
_LABEL = re.compile("[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_FILE_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class CertificateFacts:
    """Holds what a certificate says."""

    subject: str
    issuer: str
    authority: bool
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    sha256: str


def create_authority(
    folder: str | os.PathLike[str], name: str, days: int, *, now: datetime
) -> CertificateFacts:
    """Make ``authority.key``, to be kept where no server is, and ``authority.pem``, for every client."""
    place = Path(folder)
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise InputError("an authority's name has 1 to 64 printable characters")
    start, end = _validity(days, MOST_AUTHORITY_DAYS, now)
    key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, hashes.SHA256())
    )
    with system_errors_as(KeyFileError, f"make the folder {place}"):
        make_folder(place, 0o700)
    _write_pair(place, AUTHORITY, key, certificate)
    return _facts(certificate)


def issue_server(
    folder: str | os.PathLike[str], hosts: Sequence[str], days: int, *, now: datetime, name: str = "server"
) -> CertificateFacts:
    """Make ``<name>.key`` and ``<name>.pem`` for a server that is reached under these names or addresses."""
    place = Path(folder)
    if not _FILE_NAME.fullmatch(name) or name == AUTHORITY:
        raise InputError(f"{name!r} cannot name the files of a server; use letters, digits, - and _")
    if not hosts:
        raise InputError("a server's certificate needs the names or addresses under which clients reach it")
    names = [_general_name(host) for host in dict.fromkeys(hosts)]
    start, end = _validity(days, MOST_SERVER_DAYS, now)
    authority_key, authority = _read_authority(place)
    last = authority.not_valid_after_utc
    if end > last:
        raise InputError(
            f"the authority in {place} ends on {last:%Y-%m-%d}, before the {days} days of this certificate: "
            "take fewer days, or make a new authority and give it to the clients"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(_name("sfsl server"), authority.subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write_pair(place, name, key, certificate)
    return _facts(certificate)


def read_certificate(path: str | os.PathLike[str]) -> CertificateFacts:
    """Return what the first certificate of a PEM file says."""
    return _facts(_load_certificate(Path(path)))


def valid_between(path: str | os.PathLike[str]) -> tuple[datetime, datetime]:
    """Return from when until when all certificates of a PEM file are valid: clients check each of a chain."""
    chain = _load_chain(Path(path))
    return max(one.not_valid_before_utc for one in chain), min(one.not_valid_after_utc for one in chain)


def expires_within(path: str | os.PathLike[str], days: float, *, now: datetime) -> bool:
    """Return whether a certificate will have ended ``days`` from now."""
    return read_certificate(path).not_after <= _utc(now) + timedelta(days=days)


def _utc(now: datetime) -> datetime:
    if now.tzinfo is None:
        raise InputError("a time without a time zone")
    return now.astimezone(UTC)


def _validity(days: int, most: int, now: datetime) -> tuple[datetime, datetime]:
    if not 1 <= days <= most:
        raise InputError(f"a certificate for {days} days; 1 to {most} are possible")
    start = _utc(now).replace(microsecond=0)
    return start - _BACKDATED, start + timedelta(days=days)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in _USAGES})


def _general_name(host: str) -> x509.GeneralName:
    """Return an address, or a DNS name in lower case."""
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    labels = host.lower().removeprefix("*.").split(".")
    numeric = labels[-1].isdigit()  # 192.168.1 is a mistaken address, not a name
    if len(host) > 253 or numeric or not all(_LABEL.fullmatch(label) for label in labels):
        raise InputError(
            f"{host!r} is neither an IP address nor a DNS name; give it without scheme and port, and with "
            "xn-- for letters outside a to z"
        )
    return x509.DNSName(host.lower())


def _write_pair(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    private, public = folder / f"{name}.key", folder / f"{name}.pem"
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_new(private, with_last_line(pem), secret=True)
    try:
        write_new(public, with_last_line(certificate.public_bytes(serialization.Encoding.PEM)), secret=False)
    except BaseException:
        private.unlink()  # ours, made a moment ago: half a pair is of no use
        raise


def _read_authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    place = folder / f"{AUTHORITY}.pem"
    if not place.exists():
        raise KeyFileError(f"no authority in {folder}; make one:  sfsl keys authority {folder}")
    certificate = _load_certificate(place)
    secret = read_secret(folder / f"{AUTHORITY}.key")
    try:
        pem = without_last_line(secret.reveal(), "it")
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise KeyFileError(f"{folder / AUTHORITY}.key holds no private key, or it is damaged") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise KeyFileError(f"{AUTHORITY}.key and {AUTHORITY}.pem in {folder} do not belong together")
    if not _facts(certificate).authority:
        raise KeyFileError(f"{place} may not issue certificates")
    return key, certificate


def _load_certificate(path: Path) -> x509.Certificate:
    return _load_chain(path)[0]


def _load_chain(path: Path) -> list[x509.Certificate]:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError
        return x509.load_pem_x509_certificates(without_last_lines(data, "it"))
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise KeyFileError(f"{path} holds no certificate, or it is damaged") from None


def _facts(certificate: x509.Certificate) -> CertificateFacts:
    try:
        found = {type(one.value): one.value for one in certificate.extensions}
    except (ValueError, x509.DuplicateExtension):
        raise KeyFileError("a certificate with extensions that cannot be read") from None
    names, basic = found.get(x509.SubjectAlternativeName), found.get(x509.BasicConstraints)
    hosts = names if isinstance(names, x509.SubjectAlternativeName) else ()
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        authority=isinstance(basic, x509.BasicConstraints) and basic.ca,
        hosts=tuple(str(name.value) for name in hosts),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )
