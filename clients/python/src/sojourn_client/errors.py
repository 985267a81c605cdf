"""Errors of the client."""

from __future__ import annotations

from typing import Any


class SojournError(Exception):
    """An answer of the service that is not a success.

    `type` is stable: base decisions on it. docs/errors.md lists all types.
    """

    def __init__(self, status: int, detail: dict[str, Any]) -> None:
        super().__init__(detail.get("message") or f"the service answered {status} without an error body")
        self.status = status
        self.type: str = detail.get("type", "internal")
        self.code: str | None = detail.get("code")
        self.param: str | None = detail.get("param")
        self.request_id: str | None = detail.get("request_id")

    @classmethod
    def of(cls, status: int, body: object) -> SojournError:
        detail = body.get("error") if isinstance(body, dict) else None
        return cls(status, detail if isinstance(detail, dict) else {})

    @property
    def passes(self) -> bool:
        """Whether the same call may succeed later: 429 or 5xx."""
        return self.status == 429 or self.status >= 500


class WebhookError(Exception):
    """The delivery is not from the service, or its timestamp is too far from now."""
