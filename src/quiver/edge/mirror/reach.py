"""The connections to a source: by TCP or TLS, with the files of this node's surroundings."""

from __future__ import annotations

import os

from quiver.client.transport.access import access_of
from quiver.client.transport.addresses import addresses_in, is_secure
from quiver.client.transport.cluster import Cluster
from quiver.client.transport.dialer import SocketDialer
from quiver.client.transport.pool import Pool
from quiver.model.clock import Clock

CALL_TIMEOUT_S = 30.0
_TLS_FILES = ("QUIVER_CA_FILE", "QUIVER_CERTIFICATE_FILE", "QUIVER_KEY_FILE")


def reach_source(url: str, token: str, clock: Clock) -> Cluster:
    """The cluster at a URL. It is connected with when it is first called."""
    addresses = addresses_in(url)
    files = {name: os.environ[name] for name in _TLS_FILES if name in os.environ}
    access = access_of(token or None, None, is_secure=is_secure(url), environment=files)
    pool = Pool(SocketDialer(access, addresses), addresses, clock=clock)
    return Cluster(pool, clock=clock, timeout_s=CALL_TIMEOUT_S)
