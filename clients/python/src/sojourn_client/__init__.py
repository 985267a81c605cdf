"""A client of Sojourn: typed calls, streams that resume, webhooks that are verified.

Answers are plain dictionaries, typed by `sojourn_client.models`: a field that a newer
service adds is there and harms nobody.
"""

from .aio import AsyncSojourn
from .client import Sojourn
from .errors import SojournError, WebhookError
from .webhook import Webhook, verify_webhook

__all__ = ["AsyncSojourn", "Sojourn", "SojournError", "Webhook", "WebhookError", "verify_webhook"]
