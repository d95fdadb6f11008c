import os

TABLE = os.environ["ORDERS_TABLE"]


def save(body):
    raise RuntimeError("init must not run the code")


def describe(event, context):
    """Looks like a handler, and has nothing to do with a queue."""
    return {}
