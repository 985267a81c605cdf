"""Verifies the deliveries of main.mjs with the PyPI library."""

import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

OTHER = "whsec_c29tZW9uZSBlbHNl"


def refuses(secret, body, headers):
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return True
    return False


with open(sys.argv[1], encoding="utf-8") as file:
    deliveries = json.load(file)
assert len(deliveries) == 3, "main.mjs collects three deliveries"
for delivery in deliveries:
    body, headers = delivery["body"], delivery["headers"]
    for secret in delivery["secrets"]:
        assert Webhook(secret).verify(body, headers) == json.loads(body)
        assert refuses(secret, body + " ", headers), "another body"
    assert refuses(OTHER, body, headers), "another secret"
print(f"{len(deliveries)} deliveries verified by standardwebhooks of PyPI")
