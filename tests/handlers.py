"""Small handlers that misbehave, written into a folder as a user's code would be."""

from __future__ import annotations

from pathlib import Path

STORE = """
import json, os
import boto3
table = boto3.resource("dynamodb").Table(os.environ["TABLE_NAME"])
def store(event):
    order = json.loads(event["Records"][0]["body"])
    try:
        table.put_item(Item=order, ConditionExpression="attribute_not_exists(id)")
    except table.meta.client.exceptions.ConditionalCheckFailedException:
        return order | {"processed": False, "duplicate": True}
    return order | {"processed": True, "duplicate": False}
"""

BATCH = """
import json, os
import boto3
client = boto3.client("dynamodb")
refused = client.exceptions.ConditionalCheckFailedException
def store(body):
    order = json.loads(body)
    if set(order) != {"id", "quantity"} or not isinstance(order["id"], str):
        raise ValueError("not an order")
    if type(order["quantity"]) is not int or not 1 <= order["quantity"] <= 10:
        raise ValueError("not an order")
    quantity = str(order["quantity"])
    try:
        client.put_item(
            TableName=os.environ["TABLE_NAME"],
            Item={"id": {"S": order["id"]}, "quantity": {"N": quantity}},
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except refused as error:
        if error.response["Item"]["quantity"]["N"] != quantity:
            raise ValueError("a conflict") from error
def failures(event):
    failed = []
    for record in event["Records"]:
        try:
            store(record["body"])
        except (ValueError, AttributeError, TypeError):
            failed.append({"itemIdentifier": record["messageId"]})
    return failed
"""
"""Stores a batch record by record; what follows it decides what is reported."""

HANDLERS = {
    "echo": "def handler(event, context):\n    return {'records': len(event['Records'])}\n",
    "sleeps": "import time\ndef handler(event, context):\n    time.sleep(60)\n",
    "exits": "import os\ndef handler(event, context):\n    os._exit(7)\n",
    "prints": (
        "def handler(event, context):\n"
        "    for _ in range(1000):\n"
        "        print('x' * 10_000)\n"
        "    return 'printed'\n"
    ),
    "raises_at_length": "def handler(event, context):\n    raise ValueError('word ' * 20_000)\n",
    "raises": "def handler(event, context):\n    raise ValueError('no such luck')\n",
    "not_json": "def handler(event, context):\n    return {'set': {1, 2}}\n",
    "returns_bytes": "def handler(event, context):\n    return b'\\x00\\xff'\n",
    "returns_none": "def handler(event, context):\n    return None\n",
    "too_large": "def handler(event, context):\n    return 'x' * (7 * 1024 * 1024)\n",
    "forks": (
        "import os, subprocess, sys\n"
        "def handler(event, context):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    return child.pid\n"
    ),
    "context": (
        "import os\n"
        "def handler(event, context):\n"
        "    return {'request_id': context.aws_request_id, 'arn': context.invoked_function_arn,\n"
        "            'left': context.get_remaining_time_in_millis(),\n"
        "            'name': context.function_name, 'memory': context.memory_limit_in_mb,\n"
        "            'task_root': os.environ['LAMBDA_TASK_ROOT'], 'cwd': os.getcwd(),\n"
        "            'secret': os.environ.get('TESTER_SECRET')}\n"
    ),
    "globals_live": (
        "count = 0\n"
        "def handler(event, context):\n"
        "    global count\n"
        "    count += 1\n"
        "    return count\n"
    ),
    "ours": (
        "found = []\n"
        "for name in ('analysis', 'consumer', 'loadtest', 'consumer.gateway'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "        found.append(name)\n"
        "    except ImportError:\n"
        "        pass\n"
        "def handler(event, context):\n"
        "    return found\n"
    ),
    "broken_import": "import no_such_library\ndef handler(event, context):\n    return 1\n",
    "broken_syntax": "def handler(event, context)\n    return 1\n",
    "not_callable": "handler = 17\n",
    "batch_all_or_nothing": (
        BATCH + "def handler(event, context):\n"
        "    for record in event['Records']:\n"
        "        store(record['body'])\n"
    ),
    "batch_reports": (
        BATCH + "def handler(event, context):\n    return {'batchItemFailures': failures(event)}\n"
    ),
    "batch_swallows": (
        BATCH + "def handler(event, context):\n"
        "    failures(event)\n"
        "    return {'batchItemFailures': []}\n"
    ),
    "composite": (
        "import json, os\n"
        "import boto3\n"
        "table = boto3.resource('dynamodb').Table(os.environ['PURCHASES'])\n"
        "def handler(event, context):\n"
        "    order = json.loads(event['Records'][0]['body'])\n"
        "    item = {'pk': order['number'], 'sk': 'purchase', 'pieces': order['count']}\n"
        "    try:\n"
        "        table.put_item(Item=item, ConditionExpression='attribute_not_exists(pk)')\n"
        "    except table.meta.client.exceptions.ConditionalCheckFailedException:\n"
        "        return {'done': False, 'again': True}\n"
        "    return {'done': True, 'again': False}\n"
    ),
    "temporary_files": (
        STORE + "import tempfile\n"
        "def handler(event, context):\n"
        "    print('FOLDERS', os.environ['HOME'], os.environ['TMPDIR'], tempfile.gettempdir())\n"
        "    return store(event)\n"
    ),
    "stores": STORE + "def handler(event, context):\n    return store(event)\n",
    "exits_at_import": "import os\nprint('about to go')\nos._exit(3)\n",
}


def write_handlers(directory: Path) -> Path:
    """All of them in one code folder: ``echo.handler``, ``sleeps.handler``, ..."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, source in HANDLERS.items():
        (directory / f"{name}.py").write_text(source)
    return directory
