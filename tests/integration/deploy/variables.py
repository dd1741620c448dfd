"""Which variables and flags a node knows: whatever ``deploy/`` sets must be among them."""

from __future__ import annotations

from collections.abc import Mapping

from quiver.config import LoadedConfig, NodeConfig, load_config
from quiver.config.exposure import require_safe
from quiver.config.setting import settings_of
from quiver.edge.native.server import _GOODBYE_S
from quiver.edge.node import _CLOSE_TIMEOUT_S
from tests.integration.deploy.image import FINAL

SETTINGS = frozenset(one.environment for one in settings_of(NodeConfig))
OF_CLIENTS = frozenset(
    ("QUIVER_URL", "QUIVER_TOKEN", "QUIVER_CA_FILE", "QUIVER_CERTIFICATE_FILE", "QUIVER_KEY_FILE")
)
"""A forwarder reads these as well: it is a client of its nodes."""
HAND_OVER_S = 20.0
"""Room for passing leads to other nodes."""
OF_COMMANDS = frozenset(("QUIVER_CONFIG",))
KNOWN = SETTINGS | OF_CLIENTS | OF_COMMANDS


def loaded(variables: Mapping[str, str]) -> LoadedConfig:
    """The settings of a container with these variables, if a node would start with them."""
    assert {name for name in variables if name.startswith("QUIVER_")} <= KNOWN
    read = load_config(environment={**FINAL.environment, **variables})
    require_safe(read.config)
    return read


def stop_seconds_max(config: NodeConfig) -> float:
    """How long a node takes at most to stop: it passes on its leads, both edges drain, logs are closed."""
    drains = 2 * config.limits.drain_timeout_s + 2 * _GOODBYE_S
    return HAND_OVER_S + drains + _CLOSE_TIMEOUT_S
