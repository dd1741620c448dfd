"""The names that a certificate stands for."""

from __future__ import annotations

from typing import Any

from quiver.edge.auth.credentials import certificate_names


def certificate(common_name: str, *alternatives: tuple[str, str]) -> dict[str, Any]:
    return {
        "subject": ((("organizationName", "Shop"),), (("commonName", common_name),)),
        "subjectAltName": alternatives,
    }


def test_a_common_name_counts_for_nothing_beside_alternative_names() -> None:
    """Authorities check alternative names. What is in a common name is often up to who asks for it."""
    both = certificate("ops.example", ("DNS", "shop.example"), ("URI", "spiffe://shop"))
    assert certificate_names(both) == ["shop.example", "spiffe://shop"]
    assert certificate_names(certificate("ops.example", ("email", "a@shop.example"))) == [
        "a@shop.example"
    ]


def test_a_common_name_counts_where_there_is_no_other_name() -> None:
    assert certificate_names(certificate("shop.example")) == ["shop.example"]
    assert certificate_names(certificate("node-1", ("IP Address", "10.0.0.1"))) == ["node-1"]
    assert certificate_names({}) == []
