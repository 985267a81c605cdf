"""Client of Sojourn: typed calls, streams that resume, files, webhook verification.

Answers are plain dictionaries, typed by `sojourn_client.models`. Fields that a newer
service adds are kept.
"""

from ._files import FileData
from .aio import AsyncSojourn
from .client import Sojourn
from .errors import SojournError, WebhookError
from .files import AsyncFiles, Files
from .skills import AsyncSkills, SkillData, Skills
from .webhook import Webhook, verify_webhook

__all__ = [
    "AsyncFiles",
    "AsyncSkills",
    "AsyncSojourn",
    "FileData",
    "Files",
    "SkillData",
    "Skills",
    "Sojourn",
    "SojournError",
    "Webhook",
    "WebhookError",
    "verify_webhook",
]
