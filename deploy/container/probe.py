"""Asks the node in this container whether it is ready: exit code 0 if it is, 1 if not.

``probe.py healthz`` asks whether it is alive instead: a node that answers is, whatever it answers. One
that refuses more connections must not be restarted for it. The address and the certificate come from
the node's own variables. It imports only the standard library, so that it costs little.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping

SECONDS_MAX = 4.0
"""Less than the time that the container's health check has: a node that hangs is told so in words."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - it is connected to, not bound


def connection(environment: Mapping[str, str]) -> http.client.HTTPConnection:
    """A connection to the node, not open yet. It checks no certificate: it never leaves the container."""
    address = environment.get("QUIVER_HTTP", "127.0.0.1:7400")
    if address == "off":
        raise OSError("QUIVER_HTTP is off: turn the health check off as well")
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    host = _ANY.get(host, host)
    certificate = environment.get("QUIVER_SECURITY_TLS_CERTIFICATE")
    if not certificate:
        return http.client.HTTPConnection(host, int(port), timeout=SECONDS_MAX)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Where clients need a certificate, the node's own is one.
    context.load_cert_chain(certificate, environment.get("QUIVER_SECURITY_TLS_KEY") or None)
    return http.client.HTTPSConnection(host, int(port), timeout=SECONDS_MAX, context=context)


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else "readyz"
    try:
        node = connection(os.environ)
        node.request("GET", f"/{path}")
        reply = node.getresponse()
        print(reply.status, reply.read(4096).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"the node does not answer: {error}")
        return 1
    return 0 if reply.status == 200 or path == "healthz" else 1


if __name__ == "__main__":
    sys.exit(main())
