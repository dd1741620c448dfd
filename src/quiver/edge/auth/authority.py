"""Authentication, and the one permission check that every call passes.

``authenticate`` runs once for each connection, ``check`` for each request. Neither waits. Without
authentication everybody is the anonymous principal, which may do everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quiver import protocol
from quiver.config import Quotas, Security
from quiver.edge.auth.audit import Audit
from quiver.edge.auth.audit_details import resource_of
from quiver.edge.auth.call_permissions import Definitions, Rule
from quiver.edge.auth.credentials import Credentials, certificate_names
from quiver.edge.auth.permissions import EVERYTHING
from quiver.edge.auth.principal import ANONYMOUS, NOBODY, PEER, Principal
from quiver.edge.auth.quotas import Usage, Usages
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.limits.failed_logins import FailedLogins
from quiver.errors import (
    AccessRefused,
    InvalidRequest,
    PermissionDenied,
    QuiverError,
    Unauthenticated,
)
from quiver.model.clock import Clock


class Authority:
    """``tokens`` only with authentication; ``definitions`` are the broker's."""

    def __init__(
        self,
        clock: Clock,
        *,
        tokens: TokenStore | None = None,
        security: Security = Security(),  # noqa: B008 - frozen
        quotas: Quotas = Quotas(),  # noqa: B008 - frozen
        principal_quotas: Mapping[str, Quotas] | None = None,
        definitions: Definitions = Definitions(),  # noqa: B008 - frozen
        accepts_peer: Callable[[str], bool] | None = None,
        is_node: Callable[[dict[str, Any]], bool] | None = None,
    ) -> None:
        """In a cluster ``accepts_peer`` says whether a token is the secret of the nodes.

        ``is_node`` says whether a certificate is a node's; without it nodes need none.
        """
        assert tokens is not None or not security.authentication
        self._clock = clock
        self._tokens = tokens
        self._is_required = security.authentication
        self._definitions = definitions
        self._attempts = FailedLogins()
        self._usages = Usages(quotas, principal_quotas)
        self._admins = {name: Principal(name, EVERYTHING) for name in security.admin_names}
        self.audit = Audit()
        self._accepts_peer = accepts_peer
        self._is_node = is_node
        self._takes_certificates = bool(security.tls_client_ca)

    @property
    def tokens(self) -> TokenStore:
        """``InvalidRequest`` where nobody is asked for one.

        A token made while everybody may make one would still count when that is over.
        """
        if self._tokens is None or not self._is_required:
            raise InvalidRequest(
                "this node does not use tokens: turn on security.authentication first"
            )
        return self._tokens

    @property
    def stranger(self) -> Principal:
        """Whoever has not been asked who they are, or not yet."""
        return NOBODY if self._is_required else ANONYMOUS

    def authenticate(self, credentials: Credentials) -> Principal:
        """Whom the credentials stand for; ``Unauthenticated`` if for nobody."""
        if self._is_peer(credentials):
            return PEER
        if not self._is_required:
            return ANONYMOUS
        try:
            return self._known(credentials)
        except AccessRefused as refusal:
            now = self._clock.monotonic()
            # Only failures are limited: a valid token works whoever else is at its address.
            error = self._attempts.failed(credentials.address, now) or refusal
            self.audit.refusal(NOBODY.name, "authenticate", "", credentials.address, error, now)
            raise error from None

    def is_peer_secret(self, token: str) -> bool:
        """Whether nodes are known by this now."""
        return self._accepts_peer is not None and self._accepts_peer(token)

    def _is_peer(self, credentials: Credentials) -> bool:
        """Nodes use the native protocol, and where there is TLS they have a certificate."""
        if not credentials.is_native or credentials.token is None:
            return False
        if self._is_node is not None and not self._is_node(credentials.certificate or {}):
            return False
        return self.is_peer_secret(credentials.token)

    def _known(self, credentials: Credentials) -> Principal:
        assert self._tokens is not None
        if credentials.token is not None:
            principal = self._tokens.by_token(credentials.token)
            if principal is None:
                raise Unauthenticated("the token is wrong, expired or revoked")
            return principal
        if credentials.certificate and self._takes_certificates:
            names = certificate_names(credentials.certificate)
            for name in names:
                if name in self._admins:
                    return self._admins[name]
            principal = self._tokens.by_certificate(names)
            if principal is None:
                raise Unauthenticated("no principal matches a name in the client certificate")
            return principal
        raise Unauthenticated("this node requires a token; give one as token= or QUIVER_TOKEN")

    def check(
        self, principal: Principal, request: protocol.AnyRequest, rule: Rule, address: str = ""
    ) -> None:
        """Let the request pass, or raise ``Unauthenticated`` or ``PermissionDenied``."""
        if principal.is_trusted:
            return
        subject = rule.subject
        call = None if subject is None else (type(request), subject(request))
        try:
            self.require_standing(principal)
            if call is not None and principal.has_passed(call):
                return
            for need in rule.needs(request, self._definitions):
                if not principal.may(need):
                    raise PermissionDenied(
                        f"{principal.name} has no grant for {need}",
                        permission=list(need.permissions),
                        kind=need.kind.value,
                        resource=need.name[:200],
                    )
        except AccessRefused as error:
            self.refused(principal, request, address, error)
            raise
        if call is not None:
            principal.note_passed(call)

    def require_standing(self, principal: Principal) -> None:
        """``Unauthenticated`` if what the principal showed counts no more."""
        if principal.is_over(self._clock.time_us()):
            raise Unauthenticated("the token has expired or was revoked")

    def refused(
        self, principal: Principal, request: protocol.AnyRequest, address: str, error: QuiverError
    ) -> None:
        call = str(request.__struct_config__.tag)
        now = self._clock.monotonic()
        self.audit.refusal(principal.name, call, resource_of(request), address, error, now)

    def quotas(self, principal: Principal) -> Quotas:
        return self._usages.quotas_of(principal)

    def usage(self, principal: Principal) -> Usage | None:
        return self._usages.of(principal, self._clock.monotonic(), self._clock.time_us())
