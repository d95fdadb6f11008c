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
    "exits_at_import": "import os\nprint('about to go')\nos._exit(3)\n",
}


def write_handlers(directory: Path) -> Path:
    """All of them in one code folder: ``echo.handler``, ``sleeps.handler``, ..."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, source in HANDLERS.items():
        (directory / f"{name}.py").write_text(source)
    return directory
