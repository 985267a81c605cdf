"""What goes wrong, by what a caller can do about it."""

from __future__ import annotations

from typing import Any


class SojournError(Exception):
    """A refusal of the service.

    `type` is stable: decide on it. docs/errors.md lists all of them.
    """

    def __init__(self, status: int, detail: dict[str, Any]) -> None:
        super().__init__(detail.get("message") or f"the service answered {status} without a reason")
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
        """Whether the same call may go well a little later."""
        return self.status == 429 or self.status >= 500


class WebhookError(Exception):
    """A delivery that is not the service's, or not of these minutes."""
