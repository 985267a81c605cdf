"""Client of Sojourn: typed calls, streams that resume, webhook verification.

Answers are plain dictionaries, typed by `sojourn_client.models`. Fields that a newer
service adds are kept.
"""

from .aio import AsyncSojourn
from .client import Sojourn
from .errors import SojournError, WebhookError
from .webhook import Webhook, verify_webhook

__all__ = ["AsyncSojourn", "Sojourn", "SojournError", "Webhook", "WebhookError", "verify_webhook"]
