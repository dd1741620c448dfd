"""The client's methods for the cluster, tokens, metrics and alerts."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.client.api.settings import duration_s
from quiver.client.transport.cluster import Cluster, expect
from quiver.model.units import Duration
from quiver.protocol import (
    Alerts,
    ClusterInfo,
    CreateToken,
    Decommission,
    DescribeCluster,
    ListAlerts,
    ListTokens,
    Metrics,
    MovePartition,
    PartitionInfo,
    ReadMetrics,
    RevokeToken,
    RotatePeerSecret,
    SplitPartition,
    TokenCreated,
    TokenInfo,
    Tokens,
    Topic,
    TransferLead,
)
from quiver.protocol import Cluster as ClusterDescribed

_EXPIRES_S_MAX = 100 * 365 * 86_400


class ClusterAdminApi:
    """The methods of an ``AsyncClient`` for nodes, tokens and the cluster. Most need ``admin:*``."""

    _cluster: Cluster

    async def create_token(
        self,
        name: str,
        grants: Sequence[str],
        *,
        expires: Duration | None = None,
        certificate: bool = False,
    ) -> tuple[TokenInfo, str | None]:
        """Create a token for ``name``. Return its description and the token, which is not shown again.

        ``grants`` are written ``publish:orders.*`` or ``consume:queue:emails``. With ``certificate``
        no token is created: client certificates of that name get the grants.
        """
        request = CreateToken(
            name=name,
            grants=list(grants),
            expires_s=None
            if expires is None
            else duration_s("expires", expires, 1, _EXPIRES_S_MAX),
            is_certificate=certificate,
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=False)
        created = expect(TokenCreated, reply)
        return created.info, created.token

    async def list_tokens(self) -> list[TokenInfo]:
        """Return all tokens, including those that were revoked or expired recently."""
        _, (reply, _) = await self._cluster.call(ListTokens(), repeatable=True)
        return expect(Tokens, reply).tokens

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token. It stops working at once, on open connections too."""
        await self._cluster.call(RevokeToken(token_id=token_id), repeatable=True)

    async def metrics(self) -> str:
        """Return the node's metrics in the Prometheus text format. Needs ``consume:cluster:*``."""
        _, (reply, body) = await self._cluster.call(ReadMetrics(), repeatable=True)
        expect(Metrics, reply)
        return bytes(body).decode()

    async def alerts(self) -> Alerts:
        """Return the alerts that are firing, and those that cleared recently."""
        _, (reply, _) = await self._cluster.call(ListAlerts(), repeatable=True)
        return expect(Alerts, reply)

    async def describe_cluster(self) -> ClusterInfo:
        """Return the cluster's nodes, and the replicas and leader of each partition."""
        _, (reply, _) = await self._cluster.call(DescribeCluster(), repeatable=True)
        return expect(ClusterDescribed, reply).cluster

    async def move_partition(self, topic: str, partition: int, nodes: Sequence[str]) -> None:
        """Move a partition's replicas to exactly these nodes. The first becomes the leader.

        The partition stays available. ``describe_cluster`` shows its ``target`` until it has moved.
        """
        request = MovePartition(topic=topic, partition=partition, nodes=list(nodes))
        await self._cluster.call(request, repeatable=True)

    async def transfer_lead(self, topic: str, partition: int, node: str | None = None) -> None:
        """Move the leader of a partition to ``node``, by default to the best other in-sync replica."""
        request = TransferLead(topic=topic, partition=partition, node=node)
        await self._cluster.call(request, repeatable=node is not None)

    async def rotate_peer_secret(self) -> None:
        """Replace the secret that the cluster's nodes know each other by. Needs ``admin:cluster:*``.

        The nodes use the new one at once. The old one is accepted for ten more minutes.
        """
        await self._cluster.call(RotatePeerSecret(), repeatable=False)

    async def split_partition(self, topic: str, partition: int) -> PartitionInfo:
        """Split a partition and return the new one, which gets half of its keys. Needs ``admin:TOPIC``.

        The partition stays available, and the messages of each key stay in order.
        """
        layout = await self._cluster.refresh(topic)
        request = SplitPartition(topic=topic, partition=partition, layout=layout.version)
        asked, (reply, _) = await self._cluster.call(
            request,
            repeatable=True,
            find_address=lambda: (self._cluster.known_layout(topic) or layout).address(partition),
            about=topic,
        )
        info = expect(Topic, reply).topic
        self._cluster.keep(info, asked)
        known = set(layout.partitions)
        return next(one for one in info.partitions if _is_child(one, partition, known))

    async def decommission(self, node: str, *, cancel: bool = False) -> None:
        """Move all replicas off a node, so that it can be removed; ``cancel`` stops this."""
        await self._cluster.call(Decommission(node=node, cancel=cancel), repeatable=True)


def _is_child(one: PartitionInfo, parent: int, known: set[int]) -> bool:
    return one.parent == parent and one.index not in known
