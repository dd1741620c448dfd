"""The secrets that sign webhooks: files in one folder of the node, each named for its secret."""

from __future__ import annotations

import os

from quiver.errors import InvalidSetting
from quiver.model.topic import checked_name

_BYTES_MAX = 4096


class WebhookSecrets:
    def __init__(self, folder: str) -> None:
        """``folder`` is that of ``web.webhook_secrets``; empty if there is none."""
        self._folder = folder

    def read(self, name: str) -> bytes:
        """The secret of this name; ``InvalidSetting`` if there is none. Reads a file."""
        if not self._folder:
            raise InvalidSetting(
                f"push.secret: there is no secret {name[:200]!r}: set web.webhook_secrets to the "
                "folder with the secrets",
                setting="push.secret",
            )
        try:
            with open(os.path.join(self._folder, checked_name(name, "secret")), "rb") as file:
                secret = file.read(_BYTES_MAX).strip()
        except OSError:
            secret = b""
        if not secret:
            raise InvalidSetting(
                f"push.secret: there is no secret {name[:200]!r} in the folder web.webhook_secrets",
                setting="push.secret",
            )
        return secret
