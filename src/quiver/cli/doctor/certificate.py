"""Check of the node's certificate: readable, matching its key, not about to expire."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

from quiver.cli.doctor.finding import Finding, failure, ok, warning
from quiver.config import NodeConfig

_SOON = timedelta(days=21)
_VERSION = 0xA0
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_PEM_END = "-----END CERTIFICATE-----"


def certificate(config: NodeConfig, now: datetime) -> Finding | None:
    """``None`` without TLS."""
    security = config.security
    if not security.tls_certificate:
        return None
    name, renew = "certificate", "renew it; a running node loads the new file by itself"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            security.tls_certificate, security.tls_key, lambda: ""
        )
        with open(security.tls_certificate) as file:
            expires = expiry(file.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return failure(
            name,
            f"{security.tls_certificate} cannot be used: {reason}",
            "check security.tls_certificate and security.tls_key",
        )
    day = expires.date().isoformat()
    if expires <= now:
        return failure(name, f"it expired on {day}", renew)
    if expires - now < _SOON:
        return warning(name, f"it expires on {day}", renew)
    return ok(name, f"it is valid until {day}")


def expiry(pem: str) -> datetime:
    """When the first certificate of a PEM file expires; ``ValueError`` if there is none."""
    first = pem[pem.find("-----BEGIN CERTIFICATE-----") :].partition(_PEM_END)[0] + _PEM_END
    content = ssl.PEM_cert_to_DER_cert(first)
    _, signed, _ = _element(content)  # Certificate
    _, fields, _ = _element(signed)  # TBSCertificate: version?, serial, algorithm, issuer, validity
    tag, _, rest = _element(fields)
    skipped = 3 if tag == _VERSION else 2
    for _ in range(skipped):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, after = _element(validity)
    tag, text, _ = _element(after)
    if tag not in _TIMES:
        raise ValueError("not a certificate")
    return datetime.strptime(text.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first element (DER), and what comes after it."""
    if len(data) < 2:
        raise ValueError("not a certificate")
    tag, length, start = data[0], data[1], 2
    if length >= 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[2 : 2 + size]), 2 + size
    return tag, data[start : start + length], data[start + length :]
