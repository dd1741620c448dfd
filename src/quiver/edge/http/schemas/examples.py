"""One example for each request and reply: shown in OpenAPI, and tried in the tests."""

from __future__ import annotations

from typing import Any

_RECEIPT = "AQAAAAEAAAAAAAEAAABWyXxCb1dvZC2ngxA.0"
_ID = "0pg4v6qg9e2g00000400000000000000"
_TIME = "2026-11-15T12:14:44.677509Z"
_TOPIC_SETTINGS = {
    "partitions": 4,
    "durability": "fsync",
    "sync_interval_ms": 50,
    "retention": {
        "age": 604800.0,
        "bytes": None,
        "messages": None,
        "acked": False,
        "scope": "partition",
        "unread": "keep",
        "unread_age": None,
        "unread_bytes": 10000000000,
        "unread_overflow": "refuse",
    },
    "compression": "none",
    "message_bytes_max": 1048576,
    "acks": "quorum",
    "segment_bytes": 268435456,
    "segment_age_s": 86400,
    "dedup_window": 300.0,
}
_TOPIC = {
    "name": "orders",
    "created": _TIME,
    "settings": _TOPIC_SETTINGS,
    "partitions": [
        {"index": 0, "leader": None, "start_offset": 0, "next_offset": 7, "bytes": 4096}
    ],
}
_SUBSCRIPTION = {
    "name": "emails",
    "created": _TIME,
    "is_queue": True,
    "settings": {
        "topics": ["emails"],
        "ordering": "none",
        "guarantee": "at-least-once",
        "visibility": 30.0,
        "max_deliveries": 5,
        "dead_letter": None,
        "backoff": {"min": 1.0, "max": 600.0, "factor": 2.0},
        "ageing": 60.0,
        "fairness": None,
        "session_timeout": 10.0,
        "filter": None,
        "push": None,
        "on_disconnect": "return",
        "max_processing": 1800.0,
    },
    "ready": 3,
    "delayed": 0,
    "leased": 1,
    "dead": 0,
    "unseen": 0,
    "partitions": [{"topic": "emails", "partition": 0, "committed": 38, "end": 42, "lag": 4}],
}
_STORED = {"id": _ID, "topic": "emails", "partition": 0, "offset": 0}
_SEEN = {
    "id": _ID,
    "body": {"to": "ada@example.org"},
    "topic": "emails",
    "partition": 0,
    "offset": 0,
    "timestamp": _TIME,
}
_TOKEN = {
    "id": "5f0c6a1be2d94c77",
    "name": "shop",
    "grants": ["publish:orders"],
    "created": _TIME,
    "expires": "2027-02-13T12:14:44.677509Z",
    "revoked": None,
    "certificate": False,
}
_MIRROR_SETTINGS = {"source": "quiver://eu-1:7401,eu-2:7401", "topics": ["orders.*"]}
_MIRROR = {
    "name": "eu",
    "created": _TIME,
    "settings": {
        **_MIRROR_SETTINGS,
        "rename": "{topic}",
        "with_subscriptions": True,
        "with_deletions": False,
        "failback": False,
        "compression": "zstd",
        "rate": 50000000,
        "paused": False,
    },
    "has_token": True,
    "cluster": "4f1d2c3b5a697887",
    "state": "copying",
    "error": "",
    "lag_messages": 12,
    "lag_bytes": 13312,
    "lag_s": 0.25,
    "copied_bytes": 8589934592,
    "fetched_bytes": 2147483648,
    "topics": [
        {
            "name": "orders.eu",
            "source": "orders.eu",
            "error": "",
            "diverged_to": "",
            "partitions": [
                {
                    "index": 0,
                    "next_offset": 1030,
                    "source_offset": 1042,
                    "lag_messages": 12,
                    "lag_bytes": 13312,
                    "lag_s": 0.25,
                    "state_lag_s": 0.8,
                    "gaps": [{"start_offset": 100, "next_offset": 140}],
                    "error": "",
                    "is_broken": False,
                }
            ],
        }
    ],
}
_ORIGIN = {
    "mirror": "eu",
    "cluster": "4f1d2c3b5a697887",
    "topic": "orders.eu",
    "number": 7,
    "through": [],
}
EXAMPLES: dict[str, Any] = {
    "MirrorFields": {**_MIRROR_SETTINGS, "with_subscriptions": True, "rate": "50MB"},
    "MirrorChanges": {"paused": True},
    "MirrorView": _MIRROR,
    "MirrorList": {"mirrors": [_MIRROR]},
    "Promotion": {"topics": ["orders.*"], "timeout": "30s"},
    "PromotedList": {
        "topics": [
            {"name": "orders.eu", "source": _ORIGIN, "fenced": True, "complete": True, "error": ""}
        ]
    },
    "NewTransaction": {"timeout": 60},
    "TransactionView": {"id": "tx_AAAQAAEAAABg6gAAEAAAAAAAAAAAk9b2H0a5q7c", "state": "open"},
    "NewToken": {"name": "shop", "grants": ["publish:orders"], "expires": "90d"},
    "CreatedToken": {**_TOKEN, "token": "qv_5f0c6a1be2d94c77_…"},
    "TokenList": {"tokens": [_TOKEN]},
    "NewMessage": {"message": {"to": "ada@example.org"}, "priority": 5, "delay": 3600},
    "Messages": [{"message": {"id": 1}, "key": "customer-7"}, {"message": "text"}],
    "Stored": _STORED,
    "Results": {"results": [_STORED]},
    "ArrowResult": {"stored": 1000},
    "Delivered": {
        "messages": [
            {
                "id": _ID,
                "body": {"to": "ada@example.org"},
                "receipt_handle": _RECEIPT,
                "topic": "emails",
                "partition": 0,
                "offset": 0,
                "timestamp": _TIME,
                "deadline": "2026-11-15T12:15:14.688394Z",
            }
        ]
    },
    "Ack": {"receipts": [_RECEIPT]},
    "Nack": {"receipts": [_RECEIPT], "delay": "1m", "error": "mailbox full"},
    "Reject": {"receipts": [_RECEIPT], "error": "no such customer"},
    "Extend": {"receipts": [_RECEIPT], "visibility": "5m"},
    "Settled": {"settled": 1},
    "Seek": {"to": "-1h"},
    "PurgeOptions": {"filter": "headers.region = 'eu'"},
    "RedriveOptions": {"dry_run": True},
    "Count": {"messages": 7},
    "Seen": {"messages": [{**_SEEN, "state": "ready", "deliveries": 0}]},
    "MessageState": {
        "topic": "emails",
        "partition": 0,
        "offset": 0,
        "message": _SEEN,
        "subscriptions": [{"subscription": "emails", "state": "pending"}],
    },
    "TopicFields": {"partitions": 4, "retention": {"age": "7d"}},
    "QueueFields": {"visibility": "30s", "max_deliveries": 5},
    "QueueChanges": {"visibility": 60},
    "SubscriptionFields": {"topics": ["orders"], "ordering": "key", "start": "earliest"},
    "SubscriptionChanges": {"max_deliveries": 10},
    "TopicView": _TOPIC,
    "TopicList": {"topics": [_TOPIC]},
    "SubscriptionView": _SUBSCRIPTION,
    "SubscriptionList": {"subscriptions": [_SUBSCRIPTION]},
    "QueueList": {"queues": [_SUBSCRIPTION]},
    "Health": {"status": "ok"},
    "Browsed": {
        "messages": [
            {
                "id": _ID,
                "body": {"order": 7},
                "key": "customer-7",
                "topic": "emails.dlq",
                "partition": 0,
                "offset": 0,
                "timestamp": _TIME,
                "bytes": 11,
                "dead_letter": {
                    "origin_topic": "emails",
                    "origin_partition": 0,
                    "origin_offset": 3,
                    "origin_subscription": "emails",
                    "origin_time": _TIME,
                    "deliveries": 5,
                    "last_error": "no such customer",
                    "first_delivery": _TIME,
                    "last_delivery": _TIME,
                },
            }
        ],
        "examined": 1,
        "complete": True,
    },
    "ClusterView": {
        "node": "node-1",
        "software": "quiver/0.1.0",
        "uptime_s": 12.5,
        "topics": 1,
        "connections": 1,
        "nodes": [
            {
                "id": "node-1",
                "address": "10.0.0.1:7401",
                "http": "10.0.0.1:7400",
                "zone": "a",
                "version": "0.1.0",
                "role": "full",
                "alive": True,
                "draining": False,
                "leads": 1,
                "holds": 1,
            }
        ],
        "partitions": [
            {
                "topic": "orders",
                "index": 0,
                "leader": "node-1",
                "epoch": 3,
                "replicas": ["node-1"],
                "in_sync": ["node-1"],
                "eligible": [],
                "target": [],
                "min_in_sync": 1,
            }
        ],
        "controller": "node-1",
        "revision": 42,
    },
    "AlertsView": {
        "firing": [
            {
                "rule": "queue-deep",
                "watch": "depth",
                "subject": "emails",
                "severity": "warning",
                "state": "firing",
                "value": 120000,
                "limit": 100000,
                "unit": "messages",
                "since_us": 1767225600000000,
                "until_us": None,
                "summary": "queue-deep on emails: depth is 120,000 (limit 100,000), firing",
            }
        ],
        "recent": [],
    },
}
