"""A handler that nothing but its code describes. Never imported."""

import os

from store import save

QUEUE_URL = os.environ["QUEUE_URL"]
LEVEL = os.environ.get("LEVEL", "INFO")


def handler(event, context):
    failures = []
    for record in event["Records"]:
        try:
            save(record["body"])
        except ValueError:
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}
