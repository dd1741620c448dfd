"""The calls about the connection itself: hello, ping, and requests that are abandoned."""

from __future__ import annotations

from quiver import protocol
from quiver.edge.auth.call_permissions import nothing
from quiver.edge.auth.principal import PEER
from quiver.edge.calls.call import Call, Turn
from quiver.edge.calls.context import Answer, Context
from quiver.errors import UnsupportedProtocol
from quiver.version import __version__

PEER_REQUESTS_MAX = 65_536
"""How many requests of another node may be unanswered: each log that it copies has one."""


def require_version(hello: protocol.Hello) -> None:
    """Refuse a client that does not speak this node's version of the protocol."""
    if protocol.PROTOCOL_VERSION not in hello.versions:
        raise UnsupportedProtocol(
            f"this node speaks version {protocol.PROTOCOL_VERSION} of the protocol, "
            f"not {hello.versions[:10]}"
        )


async def hello(context: Context, request: protocol.Hello, _: memoryview) -> Answer:
    require_version(request)
    services = context.services
    is_peer = context.caller.principal is PEER
    return protocol.Welcome(
        version=protocol.PROTOCOL_VERSION,
        node=services.node,
        software=f"quiver/{__version__}",
        frame_bytes_max=services.limits.request_bytes_max,
        requests_max=PEER_REQUESTS_MAX if is_peer else services.limits.requests_max,
        nodes=services.node_addresses if request.forwarder else [],
    ), ()


async def ping(_context: Context, _request: protocol.Ping, _body: memoryview) -> Answer:
    return protocol.Done(), ()


async def abandon(context: Context, request: protocol.Abandon, _: memoryview) -> Answer:
    context.abandon(request.request)
    return protocol.Done(), ()


CALLS = (
    Call(request=protocol.Hello, handler=hello, needs=nothing, is_metered=False),
    Call(request=protocol.Ping, handler=ping, needs=nothing, turn=Turn.AT_ONCE),
    Call(request=protocol.Abandon, handler=abandon, needs=nothing, turn=Turn.AT_ONCE),
)
