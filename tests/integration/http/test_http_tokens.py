"""Tokens over HTTP: created, listed and revoked, and told once."""

from __future__ import annotations

from pathlib import Path

from quiver.config import Security
from tests.integration.edge_node import edge_test
from tests.integration.http.http_node import http_node, problem
from tests.integration.http.test_http_access import admin_token, bearer, made_token

ASKED = Security(authentication=True)


@edge_test
async def test_a_token_is_created_used_listed_and_revoked(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        admin = bearer(admin_token(tmp_path))
        await node.http.put("/queues/emails", headers=admin)
        wanted = {"name": "shop", "grants": ["consume:emails"], "expires": "90d"}
        made = await node.http.post("/tokens", headers=admin, json=wanted)
        assert made.status_code == 201
        told = made.json()
        assert made.headers["location"] == f"/tokens/{told['id']}"
        own = bearer(told["token"])
        assert (await node.http.get("/queues/emails", headers=own)).status_code == 200
        listed = (await node.http.get("/tokens", headers=admin)).json()["tokens"]
        [shop] = [one for one in listed if one["name"] == "shop"]
        assert shop["grants"] == ["consume:emails"]
        assert shop["expires"] is not None
        assert "token" not in shop
        gone = await node.http.delete(f"/tokens/{told['id']}", headers=admin)
        assert gone.status_code == 204
        problem(await node.http.get("/queues/emails", headers=own), 401, "unauthenticated")


@edge_test
async def test_a_wrong_token_names_its_field(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        admin = bearer(admin_token(tmp_path))
        for body, field in (
            ({"name": "", "grants": ["admin:*"]}, "name"),
            ({"name": "a", "grants": []}, "grants"),
            ({"name": "a", "grants": ["fly:*"]}, "grants"),
            ({"name": "a", "grants": ["admin:*"], "expires": "soon"}, "expires"),
            ({"name": "a b", "grants": ["admin:*"]}, "name"),
        ):
            refused = await node.http.post("/tokens", headers=admin, json=body)
            assert refused.status_code == 422
            assert refused.json().get("field") == field, refused.text
        gone = await node.http.delete("/tokens/nobody", headers=admin)
        problem(gone, 404, "token_not_found")


@edge_test
async def test_who_does_not_administer_the_cluster_sees_no_tokens(tmp_path: Path) -> None:
    async with http_node(tmp_path, security=ASKED) as node:
        some = bearer(await made_token(node, tmp_path, "admin:queue:*"))
        problem(await node.http.get("/tokens", headers=some), 403, "permission_denied")
        body = {"name": "me", "grants": ["admin:*"]}
        problem(await node.http.post("/tokens", headers=some, json=body), 403, "permission_denied")
