"""What can be set about a node, where each setting comes from, and what is wrong with it."""

from quiver.config.address import Address, parse_address
from quiver.config.alert_rule import AlertRule
from quiver.config.load import Given, LoadedConfig, load_config
from quiver.config.node import Limits, Logging, Metadata, NodeConfig, Web
from quiver.config.observability import Alerts, Metrics
from quiver.config.security import Quotas, Security

__all__ = [
    "Address",
    "AlertRule",
    "Alerts",
    "Given",
    "Limits",
    "LoadedConfig",
    "Logging",
    "Metadata",
    "Metrics",
    "NodeConfig",
    "Quotas",
    "Security",
    "Web",
    "load_config",
    "parse_address",
]
