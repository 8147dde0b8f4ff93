"""TLS: an authority of the federation's own, and the server's certificate signed by it.

ca.crt is public: nodes check the server with it. ca.key signs further certificates and is best kept elsewhere.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgbo.core.checks import whole
from fedgbo.core.errors import ConfigError, RunFolderError
from fedgbo.federation.addresses import EVERYWHERE, LOOPBACK, check_host, ip_of
from fedgbo.federation.extras import require_flower
from fedgbo.federation.secret_files import PUBLIC_FILE, check_private, private_folder, write_new

AUTHORITY_DAYS = 3650
ALWAYS = ("localhost", LOOPBACK)  # so that commands on the server's own machine reach it
SKEW = datetime.timedelta(minutes=10)  # between the clocks of the machines


def make_certificates(folder: Path, hosts: Sequence[str] = (), days: int = 365) -> list[str]:
    """Make an authority and a server's certificate for `hosts` in `folder`; return all names it is valid for.

    With an authority in the folder already and no server's certificate (moved away because it ran out), the old
    authority signs the new one, so that nodes keep their ca.crt.
    """
    require_flower()
    names = _names(hosts)
    whole("days", days)
    if days > AUTHORITY_DAYS:
        raise ConfigError(f"days must be at most {AUTHORITY_DAYS}, not {days}; the authority itself lasts no longer")
    private_folder(folder)
    for name in ("server.crt", "server.key"):
        if (folder / name).exists():
            raise RunFolderError(
                f"{folder / name} is there already and is never overwritten; choose another folder or, to renew the "
                "server's certificate, move server.crt and server.key away"
            )
    authority = _read_authority(folder) if (folder / "ca.crt").exists() else _make_authority(folder)
    _make_server(folder, authority, names, days)
    return names


def _names(hosts: Sequence[str]) -> list[str]:
    for host in hosts:
        check_host(host)
        if host in EVERYWHERE:
            raise ConfigError(
                f"{host} means every address and cannot be in a certificate; give the names or addresses that nodes "
                "will call the server by"
            )
    return list(dict.fromkeys([*hosts, *ALWAYS]))


def _make_authority(folder: Path) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    builder = _builder(_name("fedgbo federation authority"), _name("fedgbo federation authority"), key, AUTHORITY_DAYS)
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA384())
    _write(folder, "ca", key, certificate)
    return key, certificate


def _read_authority(folder: Path) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    check_private(folder / "ca.key")
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        return key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"the authority in {folder} (ca.crt, ca.key) cannot be read: {error}") from error


def _make_server(folder: Path, authority: tuple[Any, Any], names: Sequence[str], days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    ca_key, ca = authority
    key = ec.generate_private_key(ec.SECP384R1())
    addresses = [(name, ip_of(name)) for name in names]
    alternatives = [x509.DNSName(name) if ip is None else x509.IPAddress(ip) for name, ip in addresses]
    builder = _builder(_name("fedgbo federation server"), ca.subject, key, days, latest=ca.not_valid_after_utc)
    builder = (
        builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    _write(folder, "server", key, builder.sign(ca_key, hashes.SHA384()))


def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(subject: Any, issuer: Any, key: Any, days: int, latest: datetime.datetime | None = None) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(**granted: bool) -> Any:
    from cryptography import x509

    kinds = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{kind: granted.get(kind, False) for kind in kinds})


def _write(folder: Path, name: str, key: Any, certificate: Any) -> None:
    from cryptography.hazmat.primitives import serialization

    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_new(folder / f"{name}.key", key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    write_new(folder / f"{name}.crt", certificate.public_bytes(pem), PUBLIC_FILE)
