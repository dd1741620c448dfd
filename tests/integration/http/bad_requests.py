"""Requests that nobody should make, and what each is told.

A ``Bad`` is a request as it goes over the wire, so that it can be wrong in any way; ``status`` and
``code`` are what the reference promises for it. ``None`` stands for a connection that is closed
without an answer.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from quiver.edge.http.arrow import stream_of
from quiver.edge.http.operation import ARROW

QUEUE = "/queues/emails/messages"
BODY_MAX = 64 << 10
HEADERS_MAX = 8 << 10


class Bad(NamedTuple):
    name: str
    data: bytes
    status: int | None
    code: str | None = None
    field: str | None = None


def raw(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """A request that is well-formed as far as its parts are."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def posted(body: bytes, path: str = QUEUE, kind: str = "application/json") -> bytes:
    return raw("POST", path, body, f"Content-Type: {kind}")


def _json_bodies() -> Iterator[Bad]:
    for name, body in {
        "empty": b"",
        "spaces": b"   ",
        "text": b"hello",
        "cut short": b'{"message": 1',
        "trailing comma": b'{"message": 1,}',
        "single quotes": b"{'message': 1}",
        "NaN": b'{"message": NaN}',
        "Infinity": b'{"message": Infinity}',
        "minus Infinity": b'{"message": -Infinity}',
        "leading zero": b'{"message": 01}',
        "comment": b'{"message": 1} // yes',
        "two values": b'{"message": 1}{"message": 2}',
        "control character": b'{"message": "\x01"}',
        "byte order mark": b'\xef\xbb\xbf{"message": 1}',
        "UTF-16": '{"message": 1}'.encode("utf-16"),
        "invalid UTF-8 in text": b'{"message": "\xff\xfe"}',
        "invalid UTF-8 in a name": b'{"mess\xc3age": 1}',
        "overlong UTF-8": b'{"message": "\xc0\xaf"}',
        "surrogate in UTF-8": b'{"message": "\xed\xa0\x80"}',
        "lone surrogate escape": b'{"message": 1, "key": "\\ud800"}',
        "bare minus": b'{"message": -}',
        "hexadecimal": b'{"message": 0x10}',
        "unclosed string": b'{"message": "abc}',
        "unclosed list": b'[{"message": 1}',
        "nul": b"\x00",
    }.items():
        yield Bad(f"json: {name}", posted(body), 400, "malformed_body")
    for name, body, field in (
        ("number", b"7", None),
        ("text value", b'"message"', None),
        ("null", b"null", None),
        ("empty object", b"{}", "message"),
        ("empty list", b"[]", None),
        ("list of numbers", b"[1, 2]", "[0]"),
        ("list with an empty object", b'[{"message": 1}, {}]', "[1].message"),
        ("unknown field", b'{"message": 1, "colour": "red"}', "colour"),
        ("priority text", b'{"message": 1, "priority": "5"}', "priority"),
        ("priority fraction", b'{"message": 1, "priority": 5.5}', "priority"),
        ("priority high", b'{"message": 1, "priority": 10}', "priority"),
        ("priority low", b'{"message": 1, "priority": -1}', "priority"),
        ("priority huge", b'{"message": 1, "priority": 99999999999999999999}', "priority"),
        ("priority overflow", b'{"message": 1, "priority": 1e400}', "priority"),
        ("priority true", b'{"message": 1, "priority": true}', "priority"),
        ("priority list", b'{"message": 1, "priority": [5]}', "priority"),
        ("delay negative", b'{"message": 1, "delay": -1}', "delay"),
        ("delay huge", b'{"message": 1, "delay": 1e300}', "delay"),
        ("delay words", b'{"message": 1, "delay": "soon"}', "delay"),
        ("delay empty", b'{"message": 1, "delay": ""}', "delay"),
        ("delay object", b'{"message": 1, "delay": {}}', "delay"),
        ("delay false", b'{"message": 1, "delay": false}', "delay"),
        ("ttl negative", b'{"message": 1, "ttl": -0.5}', "ttl"),
        ("ttl words", b'{"message": 1, "ttl": "1 h"}', "ttl"),
        ("key number", b'{"message": 1, "key": 7}', "key"),
        ("key object", b'{"message": 1, "key": {}}', "key"),
        ("headers list", b'{"message": 1, "headers": []}', "headers"),
        ("headers of numbers", b'{"message": 1, "headers": {"a": 1}}', "headers[...]"),
        ("headers nested", b'{"message": 1, "headers": {"a": {}}}', "headers[...]"),
        ("event time number", b'{"message": 1, "event_time": 1700000000}', "event_time"),
        (
            "event time without zone",
            b'{"message": 1, "event_time": "2026-01-01T00:00:00"}',
            "event_time",
        ),
        ("event time words", b'{"message": 1, "event_time": "yesterday"}', "event_time"),
        (
            "event time month 13",
            b'{"message": 1, "event_time": "2026-13-01T00:00:00Z"}',
            "event_time",
        ),
        ("dedup id empty", b'{"message": 1, "dedup_id": ""}', "dedup_id"),
        ("dedup id long", b'{"message": 1, "dedup_id": "' + b"x" * 257 + b'"}', "dedup_id"),
        ("partition negative", b'{"message": 1, "partition": -1}', "partition"),
        ("partition text", b'{"message": 1, "partition": "0"}', "partition"),
        ("encoding unknown", b'{"message": 1, "encoding": "hex"}', "encoding"),
        ("base64 of a number", b'{"message": 1, "encoding": "base64"}', "message"),
        ("base64 that is none", b'{"message": "###", "encoding": "base64"}', "message"),
        ("base64 cut short", b'{"message": "YQ", "encoding": "base64"}', "message"),
        ("base64 in a list", b'[{"message": "#", "encoding": "base64"}]', "[0].message"),
        ("nested 129 deep", b'{"message": ' + b"[" * 129 + b"]" * 129 + b"}", "message"),
        ("nested 2,000 deep", b'{"message": ' + b"[" * 2000 + b"]" * 2000 + b"}", "message"),
        ("objects 2,000 deep", b'{"message": ' + b'{"a":' * 2000 + b"1" + b"}" * 2001, "message"),
        (
            "nested 129 deep in a list",
            b'[{"message": 1}, {"message": ' + b"[" * 129 + b"]" * 129 + b"}]",
            "[1].message",
        ),
        ("lists 20,000 deep", b"[" * 20_000 + b"]" * 20_000, None),
        ("nested inside a list", b'[{"message": ' + b"[" * 500 + b"]" * 500 + b"}]", "[0].message"),
        ("10,001 messages", b"[" + b'{"message":1},' * 10_000 + b'{"message":1}]', None),
    ):
        bad_status = 413 if len(body) > BODY_MAX else 422
        code = "body_too_large" if bad_status == 413 else "invalid_request"
        yield Bad(f"json: {name}", posted(body), bad_status, code, field)
    yield Bad(
        "json: a partition that is not there",
        posted(b'{"message": 1, "partition": 9}'),
        404,
        "partition_not_found",
    )
    yield Bad(
        "json: a message over the topic's limit",
        posted(b'{"message": "' + b"x" * 2000 + b'"}', "/queues/small/messages"),
        413,
        "message_too_large",
    )


def _names() -> Iterator[Bad]:
    for name in (
        "a%20b",
        "a%00b",
        "a%0d%0ab",
        "%C3%A9",
        "%FF",
        "a%3Fb",
        "a;b",
        "a:b",
        "a*",
        "~root",
        "a,b",
        "%2E%2E%5Cetc",
        "a%7Cb",
        "%3Cscript%3E",
        "x" * 201,
        "__own",
        "a%25b",
    ):
        for kind in ("topics", "queues"):
            yield Bad(f"name: PUT {kind} {name[:20]}", raw("PUT", f"/{kind}/{name}"), 422)
    for path in (
        "/topics/../etc/passwd",
        "/topics/..%2f..%2fetc",
        "/topics/a%2Fb",
        "/topics//",
        "/topics/",
        "/queues/emails/",
        "/queues/emails/messages/",
        "/queues/emails/messages/a/b",
        "/queues//messages",
        "//queues/emails",
        "/QUEUES/emails",
        "/favicon.ico",
        "/.env",
        "/openapi.json/",
        "/subscriptions/emails/stream",
    ):
        yield Bad(f"path: {path}", raw("GET", path), 404, "path_not_found")
    for name in (".", ".."):
        yield Bad(f"name: PUT {name}", raw("PUT", f"/topics/{name}"), 422, "invalid_setting")


def _queries() -> Iterator[Bad]:
    for query, field in (
        ("batch_size=0", "batch_size"),
        ("batch_size=-1", "batch_size"),
        ("batch_size=10001", "batch_size"),
        ("batch_size=1.5", "batch_size"),
        ("batch_size=ten", "batch_size"),
        ("batch_size=", "batch_size"),
        ("batch_size=1e5", "batch_size"),
        ("batch_size=99999999999999999999", "batch_size"),
        ("batch_size=null", "batch_size"),
        ("batch_size=1&batch_size=2", "batch_size"),
        ("batch_size[]=1", "batch_size[]"),
        ("wait=-1", "wait"),
        ("wait=21", "wait"),
        ("wait=nan", "wait"),
        ("wait=inf", "wait"),
        ("wait=1e400", "wait"),
        ("wait=20x", "wait"),
        ("visibility=-1", "visibility"),
        ("visibility=43201", "visibility"),
        ("visibility=null", "visibility"),
        ("visibility=nan", "visibility"),
        ("colour=red", "colour"),
        ("%62atch_size=0", "batch_size"),
        ("batch_size=%FF", "query"),
        ("&".join(f"a{n}=1" for n in range(30)), "query"),
    ):
        yield Bad(
            f"query: {query[:30]}", raw("GET", f"{QUEUE}?{query}"), 422, "invalid_request", field
        )
    yield Bad(
        "query: on JSON",
        posted(b'{"message": 1}', QUEUE + "?priority=5"),
        422,
        "invalid_request",
        "priority",
    )
    for query in (
        "priority=10",
        "delay=soon",
        "ttl=-1",
        "partition=-1",
        "headers=a",
        "key=" + "k" * 1001,
    ):
        field = query.partition("=")[0]
        yield Bad(
            f"query: bytes with {query[:20]}",
            posted(b"x", f"{QUEUE}?{query}", "text/plain"),
            422,
            "invalid_request",
            field,
        )


def _receipts() -> Iterator[Bad]:
    for receipt in (
        "x",
        "a.b",
        "AAAA.1",
        ".",
        "1",
        "%00",
        "%FF.1",
        "A" * 400,
        "null",
        "%E2%82%AC.1",
    ):
        yield Bad(
            f"receipt: DELETE {receipt[:20]}",
            raw("DELETE", f"{QUEUE}/{receipt}"),
            422,
            "invalid_receipt",
        )
    forged = "AQAAAAEAAAAAAAEAAABWyXxCb1dvZC2ngxA.0"
    yield Bad("receipt: forged", raw("DELETE", f"{QUEUE}/{forged}"), 422, "invalid_receipt")
    for verb in ("ack", "nack", "reject", "extend"):
        path = f"/subscriptions/emails/{verb}"
        rest = b', "visibility": 5' if verb == "extend" else b""
        for name, body, field in (
            ("none", b"{}", "receipts"),
            ("an empty list", b'{"receipts": []' + rest + b"}", "receipts"),
            ("text", b'{"receipts": "x"' + rest + b"}", "receipts"),
            ("numbers", b'{"receipts": [1]' + rest + b"}", "receipts[0]"),
            ("an empty text", b'{"receipts": [""]' + rest + b"}", "receipts[0]"),
            ("a long text", b'{"receipts": ["' + b"x" * 101 + b'"]' + rest + b"}", "receipts[0]"),
            ("an unknown field", b'{"receipts": ["x"], "now": 1' + rest + b"}", "now"),
        ):
            yield Bad(f"{verb}: {name}", posted(body, path), 422, "invalid_request", field)
        body = b'{"receipts": ["nonsense"]' + rest + b"}"
        yield Bad(f"{verb}: nonsense", posted(body, path), 422, "invalid_receipt")
        missing = f"/subscriptions/nobody/{verb}"
        body = b'{"receipts": ["' + forged.encode() + b'"]' + rest + b"}"
        yield Bad(f"{verb}: nobody's", posted(body, missing), 404, "subscription_not_found")
    for name, body, field in (
        ("nack: delay negative", b'{"receipts": ["x"], "delay": -1}', "delay"),
        ("nack: delay of a year", b'{"receipts": ["x"], "delay": 31536000}', "delay"),
        ("nack: error number", b'{"receipts": ["x"], "error": 1}', "error"),
        ("nack: error long", b'{"receipts": ["x"], "error": "' + b"x" * 4001 + b'"}', "error"),
    ):
        yield Bad(name, posted(body, "/subscriptions/emails/nack"), 422, "invalid_request", field)
    for name, body, field in (
        ("reject: a delay", b'{"receipts": ["x"], "delay": 1}', "delay"),
        ("reject: error number", b'{"receipts": ["x"], "error": 1}', "error"),
        ("reject: error long", b'{"receipts": ["x"], "error": "' + b"x" * 4001 + b'"}', "error"),
    ):
        yield Bad(name, posted(body, "/subscriptions/emails/reject"), 422, "invalid_request", field)
    for name, body, field in (
        ("extend: no time", b'{"receipts": ["x"]}', "visibility"),
        ("extend: time null", b'{"receipts": ["x"], "visibility": null}', "visibility"),
        ("extend: time of a day", b'{"receipts": ["x"], "visibility": 86400}', "visibility"),
    ):
        yield Bad(name, posted(body, "/subscriptions/emails/extend"), 422, "invalid_request", field)


def _bodies() -> Iterator[Bad]:
    over = b"x" * (BODY_MAX + 1)
    yield Bad("body: too large", posted(over, kind="text/plain"), 413, "body_too_large")
    yield Bad(
        "body: says it is huge",
        raw("POST", QUEUE, b"", "Content-Type: text/plain").replace(
            b"Content-Length: 0", b"Content-Length: 99999999999999"
        ),
        413,
        "body_too_large",
    )
    chunks = b"".join(b"1000\r\n" + b"x" * 4096 + b"\r\n" for _ in range(20)) + b"0\r\n\r\n"
    chunked = (
        f"POST {QUEUE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: a/b\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    yield Bad("body: too large in chunks", chunked.encode() + chunks, 413, "body_too_large")
    bomb = gzip.compress(bytes(1 << 20))
    packed = "Content-Type: text/plain"
    yield Bad(
        "packed: gzip bomb",
        raw("POST", QUEUE, bomb, packed, "Content-Encoding: gzip"),
        413,
        "body_too_large",
    )
    zstd = pa.compress(bytes(1 << 20), codec="zstd", asbytes=True)
    yield Bad(
        "packed: zstd bomb",
        raw("POST", QUEUE, zstd, packed, "Content-Encoding: zstd"),
        413,
        "body_too_large",
    )
    for name, data in {
        "plain": b"hello",
        "cut short": bomb[:20],
        "junk behind": gzip.compress(b"1") + b"junk",
    }.items():
        yield Bad(
            f"packed: gzip that is {name}",
            raw("POST", QUEUE, data, packed, "Content-Encoding: gzip"),
            400,
            "malformed_body",
        )
    yield Bad(
        "packed: zstd that is plain",
        raw("POST", QUEUE, b"hello", packed, "Content-Encoding: zstd"),
        400,
        "malformed_body",
    )
    for encoding in ("br", "deflate", "gzip, gzip", "x"):
        yield Bad(
            f"packed: {encoding}",
            raw("POST", QUEUE, b"1", packed, f"Content-Encoding: {encoding}"),
            415,
            "unsupported_media_type",
        )
    for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x"):
        yield Bad(
            f"type: PUT topic {kind}",
            raw("PUT", "/topics/new", b"{}", f"Content-Type: {kind}"),
            415,
            "unsupported_media_type",
        )
        yield Bad(
            f"type: ack {kind}",
            posted(b"{}", "/subscriptions/emails/ack", kind),
            415,
            "unsupported_media_type",
        )
    yield Bad(
        "type: accept nothing we have",
        raw("GET", QUEUE, b"", "Accept: text/csv"),
        406,
        "not_acceptable",
    )
    yield Bad("body: on a receive", raw("GET", QUEUE, b"x"), 400, "malformed_body")
    yield Bad("body: on a delete", raw("DELETE", f"{QUEUE}/x", b"x"), 400, "malformed_body")
    yield Bad(
        "body: none for a subscription", raw("PUT", "/subscriptions/new"), 400, "malformed_body"
    )
    yield Bad(
        "subscription: without topics",
        raw("PUT", "/subscriptions/new", b"{}"),
        422,
        "invalid_request",
        "topics",
    )
    yield Bad(
        "subscription: of nothing",
        raw("PUT", "/subscriptions/new", b'{"topics": []}'),
        422,
        "invalid_request",
        "topics",
    )
    yield Bad(
        "subscription: of a topic that is not there",
        raw("PUT", "/subscriptions/new", b'{"topics": ["nope"]}'),
        404,
        "topic_not_found",
    )
    yield Bad(
        "subscription: bad filter",
        raw("PUT", "/subscriptions/new", b'{"topics": ["emails"], "filter": "(("}'),
        422,
        "invalid_filter",
    )
    yield Bad(
        "subscription: backwards back-off",
        raw(
            "PUT", "/subscriptions/new", b'{"topics": ["emails"], "backoff": {"min": 9, "max": 1}}'
        ),
        422,
        "invalid_setting",
        "backoff.max",
    )


def _arrow() -> Iterator[Bad]:
    good = stream_of(pa.record_batch({"payload": [b"1"]}))
    for name, data, status, code in (
        ("text", b"hello", 400, "malformed_body"),
        ("nothing", b"", 400, "malformed_body"),
        ("cut short", good[:-20] + b"", 400, "malformed_body"),
        (
            "a schema with 2 GB of metadata",
            b"\xff\xff\xff\xff\xff\xff\xff\x7f" + good[8:],
            400,
            "malformed_body",
        ),
        ("zeros", bytes(1000), 400, "malformed_body"),
        ("no payload", stream_of(pa.record_batch({"a": [1]})), 422, "invalid_batch"),
        ("payload of numbers", stream_of(pa.record_batch({"payload": [1]})), 422, "invalid_batch"),
        (
            "payload of nothing",
            stream_of(pa.record_batch({"payload": pa.nulls(1 << 24)})),
            422,
            "invalid_batch",
        ),
        (
            "payload null",
            stream_of(pa.record_batch({"payload": pa.array([None], pa.binary())})),
            422,
            "invalid_batch",
        ),
        (
            "unknown column",
            stream_of(pa.record_batch({"payload": [b"1"], "colour": ["red"]})),
            422,
            "invalid_batch",
        ),
        (
            "priority 99",
            stream_of(pa.record_batch({"payload": [b"1"], "priority": pa.array([99], pa.int8())})),
            422,
            "invalid_batch",
        ),
        (
            "dictionaries",
            stream_of(pa.record_batch({"payload": pa.array(["1"]).dictionary_encode()})),
            422,
            "invalid_batch",
        ),
    ):
        yield Bad(f"arrow: {name}", posted(data, kind=ARROW), status, code)
    yield Bad(
        "arrow: ack without receipts",
        posted(good, "/subscriptions/emails/ack", ARROW),
        422,
        "invalid_request",
    )


def _http() -> Iterator[Bad]:
    length = b"POST /queues/emails/messages HTTP/1.1\r\nHost: localhost\r\n"
    for name, data in {
        "nothing like HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
        "no version": b"GET /healthz\r\n\r\n",
        "version 3": b"GET /healthz HTTP/3.0\r\n\r\n",
        "unknown method": b"BREW /pot HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "lower-case method": b"get /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "space in the path": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "non-ASCII path": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "space before the colon": b"GET /healthz HTTP/1.1\r\nHost : n\r\n\r\n",
        "header without colon": b"GET /healthz HTTP/1.1\r\nHost\r\n\r\n",
        "nul in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        "two lengths": length + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "length and chunks": length
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "chunks and length": length
        + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "chunked not last": length + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "length with a sign": length + b"Content-Length: +1\r\n\r\na",
        "length negative": length + b"Content-Length: -1\r\n\r\n",
        "length in words": length + b"Content-Length: one\r\n\r\n",
        "length over 64 bits": length + b"Content-Length: 99999999999999999999999\r\n\r\n",
        "bad chunk size": length + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n",
        "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    }.items():
        yield Bad(f"http: {name}", data, 400, "malformed_request")
    for name, value in (
        ("content-type", "application/json"),
        ("authorization", "Bearer x"),
        ("idempotency-key", "k"),
        ("content-encoding", "gzip"),
        ("host", "other"),
    ):
        twice = raw("POST", QUEUE, b'{"message": 1}', f"{name}: {value}", f"{name}: {value}")
        yield Bad(f"http: {name} twice", twice, 400, "malformed_request")
    many = [f"X-{n}: {'y' * 100}" for n in range(100)]
    yield Bad("http: many headers", raw("GET", "/healthz", b"", *many), 431, "headers_too_large")
    yield Bad(
        "http: one long header",
        raw("GET", "/healthz", b"", "X: " + "y" * HEADERS_MAX),
        431,
        "headers_too_large",
    )
    yield Bad(
        "http: a header without end",
        raw("GET", "/healthz")[:-2] + b"X: " + b"y" * (2 * HEADERS_MAX),
        431,
        "headers_too_large",
    )
    yield Bad("http: long path", raw("GET", "/" + "x" * HEADERS_MAX), 431, "headers_too_large")
    yield Bad(
        "http: cookie bomb",
        raw("GET", "/healthz", b"", *["Cookie: " + "c" * 1000] * 10),
        431,
        "headers_too_large",
    )
    yield Bad(
        "http: idempotency key empty",
        raw("POST", QUEUE, b'{"message": 1}', "Idempotency-Key:"),
        422,
        "invalid_setting",
        "Idempotency-Key",
    )
    yield Bad(
        "http: idempotency key long",
        raw("POST", QUEUE, b'{"message": 1}', "Idempotency-Key: " + "k" * 257),
        422,
        "invalid_setting",
        "Idempotency-Key",
    )
    yield Bad(
        "http: foreign origin",
        raw("POST", QUEUE, b'{"message": 1}', "Origin: https://evil.example.org"),
        403,
        "access_refused",
    )
    yield Bad(
        "http: origin null",
        raw("POST", QUEUE, b'{"message": 1}', "Origin: null"),
        403,
        "access_refused",
    )
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
        yield Bad(f"http: {method} messages", raw(method, QUEUE), 405, "method_not_allowed")
    for path, code in (
        ("/queues/nobody/messages", "subscription_not_found"),
        ("/topics/nobody/messages", "topic_not_found"),
    ):
        yield Bad(f"missing: {path}", posted(b'{"message": 1}', path), 404, code)
    yield Bad(
        "missing: receive", raw("GET", "/queues/nobody/messages"), 404, "subscription_not_found"
    )


BAD_REQUESTS = [
    *_json_bodies(),
    *_names(),
    *_queries(),
    *_receipts(),
    *_bodies(),
    *_arrow(),
    *_http(),
]
