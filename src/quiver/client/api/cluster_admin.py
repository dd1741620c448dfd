"""Nodes from the client's side: the cluster, its tokens, and a node's figures and alerts."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.client.transport.cluster import Cluster, expect
from quiver.model.units import Duration, seconds
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
    SplitPartition,
    TokenCreated,
    TokenInfo,
    Tokens,
    Topic,
    TransferLead,
)
from quiver.protocol import Cluster as ClusterDescribed


class ClusterAdminApi:
    """The part of an ``AsyncClient`` that is about how nodes are, and about tokens and the cluster,
    which need ``admin:*``."""

    _cluster: Cluster

    async def create_token(
        self,
        name: str,
        grants: Sequence[str],
        *,
        expires: Duration | None = None,
        certificate: bool = False,
    ) -> tuple[TokenInfo, str | None]:
        """Make a token for ``name``: what is known of it, and the token, which is not shown again.

        ``grants`` are written ``publish:orders.*`` or ``consume:queue:emails``. With ``certificate``
        there is no token: client certificates of that name have the grants.
        """
        request = CreateToken(
            name=name,
            grants=list(grants),
            expires_s=None if expires is None else seconds(expires),
            is_certificate=certificate,
        )
        _, (reply, _) = await self._cluster.call(request, repeatable=False)
        created = expect(TokenCreated, reply)
        return created.info, created.token

    async def list_tokens(self) -> list[TokenInfo]:
        """Every token, also those that were revoked or expired lately."""
        _, (reply, _) = await self._cluster.call(ListTokens(), repeatable=True)
        return expect(Tokens, reply).tokens

    async def revoke_token(self, token_id: str) -> None:
        """From now on the token counts no more, on every connection."""
        await self._cluster.call(RevokeToken(token_id=token_id), repeatable=True)

    async def metrics(self) -> str:
        """The node's figures, as text that Prometheus reads. Needs ``consume:cluster:*``."""
        _, (reply, body) = await self._cluster.call(ReadMetrics(), repeatable=True)
        expect(Metrics, reply)
        return bytes(body).decode()

    async def alerts(self) -> Alerts:
        """The alerts that fire now, and those that cleared lately."""
        _, (reply, _) = await self._cluster.call(ListAlerts(), repeatable=True)
        return expect(Alerts, reply)

    async def describe_cluster(self) -> ClusterInfo:
        """The nodes there are, and who holds and leads which partition."""
        _, (reply, _) = await self._cluster.call(DescribeCluster(), repeatable=True)
        return expect(ClusterDescribed, reply).cluster

    async def move_partition(self, topic: str, partition: int, nodes: Sequence[str]) -> None:
        """Have these nodes, and no others, hold a partition; the first leads it in the end.

        It is copied while it is used: ``describe_cluster`` shows its ``target`` until it has moved.
        """
        request = MovePartition(topic=topic, partition=partition, nodes=list(nodes))
        await self._cluster.call(request, repeatable=True)

    async def transfer_lead(self, topic: str, partition: int, node: str | None = None) -> None:
        """Have another in-sync replica lead a partition: ``node``, or the best of the others."""
        request = TransferLead(topic=topic, partition=partition, node=node)
        await self._cluster.call(request, repeatable=node is not None)

    async def split_partition(self, topic: str, partition: int) -> PartitionInfo:
        """Have a partition give half of its keys to a new one, which is returned; needs
        ``admin:TOPIC``.

        It is used all the while, and the messages of each key stay in order.
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
        """Have a node emptied, so that it can be stopped for good; ``cancel`` lets it stay."""
        await self._cluster.call(Decommission(node=node, cancel=cancel), repeatable=True)


def _is_child(one: PartitionInfo, parent: int, known: set[int]) -> bool:
    return one.parent == parent and one.index not in known
