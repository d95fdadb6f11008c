"""Settings: what a file and flags may say, and what is said about mistakes in them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import consumer
from analysis.errors import UsageError
from analysis.schema import EffectInfo, MessageKind, OrderInfo, ResultInfo, TableRole
from loadtest.config import fill_names, load_settings, real_effects
from loadtest.orders import Dice, NumberRange, PoisonKind
from loadtest.plan import Arrangement, make_plan

WHOLE = """
[handler]
code = "src"
handler = "app.handler"
timeout = 20
environment = { TABLE_NAME = "{table:orders}", QUEUE = "{queue_url}", TOKEN = "s3cret" }

[queue]
batch_size = 5
visibility_timeout = 30
max_receive_count = 2
report_batch_item_failures = true

[[table]]
name = "orders"
key = "pk"
sort = "sk"
sort_type = "N"
complete_when = { status = ["COMPLETED", "DONE"] }

[[table]]
name = "claims"
key = "digest"
key_type = "B"
role = "guard"

[[table]]
name = "totals"
key = "day"

[order]
key = "order"
body = '{"order": "{order}", "lines": [{"sku": "{sku}"}], "price": {price}, "gift": {gift}}'
conflict = ["price"]
item = { price = "amount" }
near_ids = 0.1
poison = ["bad-json", "out-of-range"]
sku = { text = [1, 5] }
price = { decimal = [1.5, 2.25, 2] }
gift = { choice = [true, false], optional = 0.2 }

[result]
processed = "done"

[load]
orders = 10
copies = 3
conflicts = 0.5
poison = 0.1
rate = 50
arrangement = "spread"
concurrency = 4
seed = 9
drain_limit = 33

[expect]
contended_orders = 0
send_lag = 0.5
poison = "drop"
"""


def problems_of(text: str, cwd: Path, flags: Mapping[str, object] | None = None) -> list[str]:
    (cwd / "loadtest.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_settings(None, flags or {}, cwd)
    return str(caught.value).splitlines()


# --- good settings ----------------------------------------------------------------------


def test_without_file_and_flags_the_reference_handler_is_tested(tmp_path: Path) -> None:
    settings = load_settings(None, {}, tmp_path)
    assert settings.handler.code == Path(consumer.__file__).parent
    assert settings.handler.handler == "app.handler"
    assert settings.handler.timeout_s == 3
    assert settings.handler.environment == {"TABLE_NAME": "{table:orders}"}
    assert settings.queue.batch_size == 1
    assert settings.queue.visibility_timeout_s == 4
    assert settings.queue.max_receive_count == 3
    assert not settings.queue.report_batch_item_failures
    assert [(table.name, table.key, table.role) for table in settings.tables] == [
        ("orders", "id", TableRole.ORDERS),
        ("reference", "id", TableRole.REFERENCE),
    ]
    assert settings.order_info() == OrderInfo("id", {"id": "id", "quantity": "quantity"})
    assert settings.order.fields["quantity"].generator == NumberRange(1, 10, 0)
    assert settings.order.conflict == ("quantity",)
    assert settings.result_info() == ResultInfo("processed", "duplicate")
    load = settings.load
    assert (load.orders, load.copies, load.conflicts, load.poison) == (200, 5, 0.05, 0.02)
    assert (load.rate_per_s, load.arrangement) == (None, Arrangement.BURST)
    assert (load.concurrency, load.seed) == (8, 1)
    # A minute, 1,000 messages at 10/s, and three deliveries of a failing message.
    assert load.drain_limit_s == 60 + 100 + 12
    expect = settings.expect_info()
    assert (expect.contended_orders, expect.send_lag_s, expect.poison) == (0.1, 1, "dead-letter")


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "loadtest.toml").write_text(WHOLE)
    settings = load_settings(None, {}, tmp_path)
    assert settings.handler.code == tmp_path / "src"
    assert settings.handler.timeout_s == 20
    assert settings.queue.visibility_timeout_s == 30
    assert settings.queue.report_batch_item_failures
    orders, claims, totals = settings.tables
    assert (orders.role, orders.sort, orders.sort_type) == (TableRole.ORDERS, "sk", "N")
    assert orders.complete_when == {"status": ("COMPLETED", "DONE")}
    assert (claims.role, claims.key_type) == (TableRole.GUARD, "B")
    assert totals.role is TableRole.OTHER
    # The order id is the table's key, whatever the body calls it.
    assert settings.order_info() == OrderInfo(
        "order", {"order": "pk", "lines": "lines", "price": "amount", "gift": "gift"}
    )
    assert settings.order.fields["price"].generator == NumberRange(150, 225, 2)
    assert settings.order.poison == (PoisonKind.BAD_JSON, PoisonKind.OUT_OF_RANGE)
    assert settings.result_info() == ResultInfo("done", None)
    assert settings.load.rate_per_s == 50
    assert settings.load.arrangement is Arrangement.SPREAD
    assert settings.load.drain_limit_s == 33
    assert settings.expect.poison == "drop"


def test_settings_make_a_plan(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "loadtest.toml").write_text(WHOLE)
    plan = make_plan(load_settings(None, {}, tmp_path).order, orders=10, copies=3, conflicts=0.5)
    assert plan.orders() == 11
    assert sum(message.kind is MessageKind.CONFLICT for message in plan.messages) == 6


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "loadtest.toml").write_text(WHOLE.replace("orders = 10", "orders = 0"))
    flags = {"load.orders": 7, "load.seed": None, "handler.code": "other", "load.rate": "2.5"}
    settings = load_settings(None, flags, tmp_path)
    assert settings.load.orders == 7
    assert settings.load.seed == 9
    assert settings.load.rate_per_s == 2.5
    assert settings.handler.code == tmp_path / "other"


@pytest.mark.parametrize(
    ("flag", "arrangement"),
    [(True, Arrangement.BURST), (False, Arrangement.INTERLEAVED), (None, Arrangement.SPREAD)],
)
def test_the_burst_flag_chooses_an_arrangement(
    tmp_path: Path, flag: bool | None, arrangement: Arrangement
) -> None:
    (tmp_path / "loadtest.toml").write_text('[load]\narrangement = "spread"')
    settings = load_settings(None, {"load.burst": flag}, tmp_path)
    assert settings.load.arrangement is arrangement


def test_paths_of_the_file_are_relative_to_it_and_those_of_flags_to_the_directory(
    tmp_path: Path,
) -> None:
    for name in ("project/src", "here/src"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "my.toml").write_text('[handler]\ncode = "src"\nhandler = "a.b"')
    here = tmp_path / "here"
    config = Path("../project/my.toml")
    assert load_settings(config, {}, here).handler.code.samefile(tmp_path / "project" / "src")
    flags = {"handler.code": Path("src")}
    assert load_settings(config, flags, here).handler.code == here / "src"


def test_a_handler_without_code_is_in_the_directory_of_the_file(tmp_path: Path) -> None:
    assert load_settings(None, {"handler.handler": "a.b"}, tmp_path).handler.code == tmp_path


def test_ones_own_handler_promises_no_result_fields(tmp_path: Path) -> None:
    settings = load_settings(None, {"handler.handler": "a.b"}, tmp_path)
    assert settings.result_info() == ResultInfo(None, None)
    assert settings.handler.environment == {"TABLE_NAME": "{table:orders}"}


def test_pyproject_is_read_where_there_is_no_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.loadtest.load]\norders = 3")
    assert load_settings(None, {}, tmp_path).load.orders == 3
    (tmp_path / "loadtest.toml").write_text("[load]\norders = 4")
    assert load_settings(None, {}, tmp_path).load.orders == 4
    assert load_settings(Path("pyproject.toml"), {}, tmp_path).load.orders == 3


def test_a_pyproject_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1")
    assert load_settings(None, {}, tmp_path).load.orders == 200


def test_visibility_follows_the_timeout_unless_given(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text("[handler]\ntimeout = 20.5")
    assert load_settings(None, {}, tmp_path).queue.visibility_timeout_s == 22


def test_without_a_body_it_is_made_of_the_fields(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(
        '[order]\nkey = "sku"\nname = { text = [2, 2] }\ncents = { integer = [5, 5] }'
    )
    settings = load_settings(None, {}, tmp_path)
    assert settings.order.template == '{"sku": {sku}, "name": {name}, "cents": {cents}}'
    assert settings.tables[0].key == "sku"
    # Which fields may not differ is the handler's rule: none unless it is named.
    assert settings.load.conflicts == 0


def test_part_of_the_order_section_keeps_the_default_order(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text("[order]\nnear_ids = 0.5")
    settings = load_settings(None, {}, tmp_path)
    assert settings.order.near_ids == 0.5
    assert settings.order.conflict == ("quantity",)


def test_bounds_of_decimals_are_exact(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(
        '[order]\nkey = "id"\np = { decimal = [0.1, 0.30, 1] }\nq = { decimal = [-1, 1e20, 0] }'
    )
    fields = load_settings(None, {}, tmp_path).order.fields
    assert fields["p"].generator == NumberRange(1, 3, 1)
    assert fields["q"].generator == NumberRange(-1, 10**20, 0)
    assert fields["p"].generator.draw(Dice(1, "x")) in map(Decimal, ("0.1", "0.2", "0.3"))


# --- names of the run -------------------------------------------------------------------


def test_names_are_put_into_the_environment() -> None:
    environment = {"T": "{table:orders}", "BOTH": "{queue}/{dlq}", "J": '{"a": {"b": 1}} {{x}} {}'}
    names = {"table:orders": "run-1-orders", "queue": "q", "dlq": "d"}
    assert fill_names(environment, names) == {
        "T": "run-1-orders",
        "BOTH": "q/d",
        "J": '{"a": {"b": 1}} {x} {}',
    }


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"environment\.A.*\{quee\}.*did you mean queue"):
        fill_names({"A": "{quee}"}, {"queue": "q"})


def test_the_url_of_an_http_effect_is_left_to_the_environment() -> None:
    environment = {"URL": "{http:charges}/v1?t={topic:receipts_arn}", "X": "{{http:charges}}"}
    names = {"topic:receipts_arn": "arn:aws:sns:::run-1-receipts"}
    assert fill_names(environment, names) == {
        "URL": "{http:charges}/v1?t=arn:aws:sns:::run-1-receipts",
        "X": "{http:charges}",
    }


# --- effects ----------------------------------------------------------------------------

EFFECTS = """
[handler]
code = "."
handler = "app.handler"
[handler.environment]
TOPIC = "{topic:receipts} {topic:receipts_arn}"
OUT = "{queue:outbox} {queue:outbox_url} {queue:outbox_arn}"
CHARGES = "{http:charges}"

[[effect]]
call = "sns:Publish"
resource = "receipts"
key = "id"
[[effect]]
call = "sqs:SendMessage"
resource = "outbox"
key = "order_id"
[[effect]]
call = "sesv2:SendEmail"
key = "id"
[[effect]]
call = "dynamodb:PutItem"
resource = "reference"
key = "id"
[[effect]]
call = "http:POST"
resource = "charges"
key = "order"
"""


def test_effects_are_declared_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "loadtest.toml").write_text(EFFECTS)
    settings = load_settings(None, {}, tmp_path)
    assert settings.effects == (
        EffectInfo("sns", "Publish", "receipts", "id", "sns:Publish receipts"),
        EffectInfo("sqs", "SendMessage", "outbox", "order_id", "sqs:SendMessage outbox"),
        EffectInfo("sesv2", "SendEmail", None, "id", "sesv2:SendEmail"),
        EffectInfo("dynamodb", "PutItem", "reference", "id", "dynamodb:PutItem reference"),
        EffectInfo("http", "POST", "charges", "order", "http:POST charges"),
    )
    names = {
        "topic:receipts": "run-receipts",
        "queue:outbox": "run-outbox",
        "table:reference": "run-reference",
    }
    assert [effect.resource for effect in real_effects(settings.effects, names)] == [
        "run-receipts",
        "run-outbox",
        None,
        "run-reference",
        "charges",
    ]


@pytest.mark.parametrize(
    ("effect", "problem"),
    [
        (
            'call = "snss:Publish"\nkey = "id"',
            "effect[0].call: must be SERVICE:OPERATION, such as sns:Publish, with one of the "
            "services sns, sqs, ses, sesv2, dynamodb, http (did you mean sns?) "
            '(got "snss:Publish")',
        ),
        (
            'call = "sns:Publsh"\nresource = "a"\nkey = "id"',
            "effect[0].call: an effect of sns is one of Publish, PublishBatch (did you mean "
            'Publish?) (got "sns:Publsh")',
        ),
        ('call = "sqs:SendMessage"\nkey = "id"', "effect[0].resource: is missing: name the queue"),
        (
            'call = "sqs:SendMessage"\nresource = "a/b"\nkey = "id"',
            "effect[0].resource: must be at most 38 letters, digits, _ and -, with .fifo at the "
            'end for a FIFO one (got "a/b")',
        ),
        (
            'call = "dynamodb:PutItem"\nresource = "order"\nkey = "id"',
            'effect[0].resource: no [[table]] is called "order" (did you mean orders?); declared: '
            "orders, reference",
        ),
        (
            'call = "ses:SendEmail"\nkeys = "id"\nkey = "id"',
            "effect[0].keys: is not a known setting (did you mean key?)",
        ),
        (
            'call = "ses:SendEmail"\nkey = "id"\n[[effect]]\ncall = "ses:SendEmail"\nkey = "id"',
            'effect[1]: "ses:SendEmail" is declared twice',
        ),
    ],
)
def test_what_is_wrong_with_an_effect_is_said(tmp_path: Path, effect: str, problem: str) -> None:
    assert problems_of(f"[[effect]]\n{effect}", tmp_path) == [f"loadtest.toml: {problem}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{topic:receits}",
            "{topic:receits} is not a name of this run (did you mean topic:receipts?) ([[effect]] "
            "of sns declares: {topic:receipts}, {topic:receipts_arn}); write {{topic:receits}} for "
            "the text {topic:receits} itself",
        ),
        (
            "{http:charges}",
            "{http:charges} is not a name of this run ([[effect]] of http declares: none); write "
            "{{http:charges}} for the text {http:charges} itself",
        ),
    ],
)
def test_a_name_that_no_effect_declares_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    effect = '[[effect]]\ncall = "sns:Publish"\nresource = "receipts"\nkey = "id"\n'
    (told,) = problems_of(f'{effect}[handler.environment]\nNAME = "{text}"\n', tmp_path)
    assert told == f"loadtest.toml: handler.environment.NAME: {problem}"


# --- problems ---------------------------------------------------------------------------


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    assert problems_of(
        """
        [handler]
        code = "nowhere"
        handler = "app"
        timeout = 20
        [queue]
        batch_size = 11
        visibility_timeout = 5
        [load]
        orders = 0
        copis = 3
        [order]
        key = "id"
        body = '{"id": "{id}", "n": {n}}'
        conflict = ["m"]
        n = { integer = [2, 1] }
        """,
        tmp_path,
        {"load.concurrency": 0},
    ) == [
        f"loadtest.toml: handler.code: no such directory: {tmp_path / 'nowhere'}",
        'loadtest.toml: handler.handler: must be module.function, as Lambda names it (got "app")',
        "loadtest.toml: queue.visibility_timeout: must be at least handler.timeout, 20 s, or AWS "
        "refuses the mapping (got 5)",
        "loadtest.toml: queue.batch_size: must be at most 10, or with a batching_window of 1 s or "
        "more (got 11)",
        "loadtest.toml: order.n.integer: the lowest must not be above the highest (got [2, 1])",
        'loadtest.toml: order.conflict: "m" is not a field with a generator',
        "loadtest.toml: load.orders: must be at least 1 (got 0)",
        "--concurrency: must be at least 1 (got 0)",
        "loadtest.toml: load.copis: is not a known setting (did you mean copies?)",
    ]


ORDER = '[order]\nkey = "id"\n'
TABLE = '[[table]]\nname = "orders"\nkey = "id"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("laod = 1", "laod: is not a known setting (did you mean load?)"),
        ("load = 1", "load: must be a table, [load] (got 1)"),
        ("[table]\nname = 'x'", "table: must be a list of tables: [[table]]"),
        ("[queue]\nshards = 2", "queue.shards: is not a known setting"),
        (
            "[queue]\nfifo = true\nbatching_window = 1",
            "queue.fifo: goes without a batching_window: AWS has none for FIFO queues",
        ),
        (
            '[queue]\ndeduplication = "content"',
            "queue.deduplication: needs fifo = true: no other queue deduplicates",
        ),
        (
            '[queue]\nscaling = "fast"',
            "queue.scaling: must be 'fixed' or 'aws' (got \"fast\")",
        ),
        ("[handler]\ntimeout = 901", "handler.timeout: must be at most 900 (got 901)"),
        ("[handler]\ntimeout = 0", "handler.timeout: must be above 0 (got 0)"),
        ("[handler]\ntimeout = nan", "handler.timeout: must be a finite number (got NaN)"),
        (
            "[handler]\ncode = '.'",
            "handler.handler: is missing: module.function, as Lambda names it (--handler)",
        ),
        ("[handler]\ncode = 5\nhandler = 'a.b'", "handler.code: must be text (got 5)"),
        (
            "[handler]\nhandler = '.b'",
            'handler.handler: must be module.function, as Lambda names it (got ".b")',
        ),
        (
            "[handler]\nenvironment = { AWS_REGION = 'x' }",
            "handler.environment.AWS_REGION: is reserved by Lambda, which sets it itself",
        ),
        (
            "[handler]\nenvironment = { AWS_ENDPOINT_URL_SQS = 'x' }",
            "handler.environment.AWS_ENDPOINT_URL_SQS: cannot be set: the run points the handler "
            "at its own endpoint",
        ),
        (
            "[handler]\nenvironment = { A-B = 'x' }",
            "handler.environment.A-B: needs a name of two or more letters, digits and _, "
            "a letter first",
        ),
        (
            "[handler]\nenvironment = { NAME = '{table:order}' }",
            "handler.environment.NAME: {table:order} is not a name of this run "
            "(did you mean table:orders?); write {{table:order}} for the text {table:order} itself",
        ),
        ("[queue]\nbatch_size = '2'", 'queue.batch_size: must be a whole number (got "2")'),
        ("[queue]\nbatch_size = 2.0", "queue.batch_size: must be a whole number (got 2.0)"),
        (
            "[queue]\nreport_batch_item_failures = 1",
            "queue.report_batch_item_failures: must be true or false (got 1)",
        ),
        ("[queue]\nmax_receive_count = 0", "queue.max_receive_count: must be at least 1 (got 0)"),
        (TABLE + "key_type = 'X'", "table[0].key_type: must be 'S', 'N' or 'B' (got \"X\")"),
        (TABLE + "sort = 'id'", "table[0].sort: must be another attribute than key"),
        (TABLE + "sort_type = 'N'", "table[0].sort_type: needs sort, the name of the sort key"),
        (TABLE + TABLE, 'table[1].name: another table is called "orders" too'),
        (
            TABLE + "complete_when = { a = 'b' }",
            'table[0].complete_when.a: must be a list (got "b")',
        ),
        (
            TABLE + "role = 'guard'",
            'table: none has role = "orders", so there would be nothing to judge',
        ),
        (
            "[[table]]\nname = 'a b'\nkey = 'id'",
            'table[0].name: may hold only letters, digits, _, - and . (got "a b")',
        ),
        ("[load]\ncopies = true", "load.copies: must be a whole number (got true)"),
        ("[load]\nconflicts = 1.1", "load.conflicts: must be at most 1 (got 1.1)"),
        (
            "[load]\nrate = '50'",
            'load.rate: must be "max" or a number of messages a second (got "50")',
        ),
        ("[load]\nrate = 0", 'load.rate: must be "max" or a number of messages a second (got 0)'),
        (
            "[load]\narrangement = 'brust'",
            "load.arrangement: must be 'burst', 'interleaved' or 'spread' (got \"brust\")",
        ),
        (
            "[load]\norders = 1000000\ncopies = 11",
            "load.orders: orders x copies must be at most 10000000",
        ),
        (
            ORDER + "n = { integer = [1, 2] }\n[load]\nconflicts = 0.1",
            "load.conflicts: needs order.conflict, the fields in which two messages of one order "
            "may differ",
        ),
        ("[expect]\npoison = 'x'", "expect.poison: must be 'dead-letter' or 'drop' (got \"x\")"),
        ("[result]\nprocessed = ''", 'result.processed: must not be empty (got "")'),
        ("[order]\nn = { integer = [1, 2] }", "order.key: is missing"),
        (
            ORDER + "conflcit = ['n']",
            "order.conflcit: is not a known setting (did you mean conflict?), nor is its value "
            "a generator",
        ),
        (
            ORDER + "n = { integr = [1, 2] }",
            "order.n.integr: is not a known setting (did you mean integer?)",
        ),
        (
            ORDER + "n = { optional = 0.5 }",
            "order.n: needs exactly one of integer, decimal, choice and text",
        ),
        (
            ORDER + "n = { integer = [1, 2], text = [1, 2] }",
            "order.n: needs exactly one of integer, decimal, choice and text",
        ),
        (
            ORDER + "n = { integer = [1, true] }",
            "order.n.integer: must be [lowest, highest], two whole numbers (got [1, true])",
        ),
        (
            ORDER + "n = { integer = [1, 1e2] }",
            "order.n.integer: must be [lowest, highest], two whole numbers (got [1, 100.0])",
        ),
        (
            ORDER + f"n = {{ integer = [1, {10**38}] }}",
            f"order.n.integer: DynamoDB keeps 38 digits of a number (got [1, {10**38}])",
        ),
        (
            ORDER + "n = { decimal = [1.25, 2, 1] }",
            "order.n.decimal: both bounds need at most 1 decimal places",
        ),
        (
            ORDER + "n = { decimal = [1, 2] }",
            "order.n.decimal: must be [lowest, highest, decimal places] (got [1, 2])",
        ),
        (
            ORDER + "n = { choice = [1, 'a'] }",
            "order.n.choice: must be a list of texts, of numbers or of booleans, not mixed",
        ),
        (
            ORDER + "n = { text = [3, 2] }",
            "order.n.text: must be [shortest, longest], two lengths up to 100000 (got [3, 2])",
        ),
        (
            ORDER + 'body = \'{"id": {id}, "n": {m}}\'',
            "order.body: {m} has no generator; give it one, [order] m = { ... }",
        ),
        (
            ORDER + "body = '{\"id\": {id}}'\nn = { integer = [1, 2] }",
            "order.n: order.body has no {n}",
        ),
        (
            ORDER + "body = '{\"id\": 1}'",
            "order.body: has no {id}, the place of the order id",
        ),
        (
            ORDER + 'body = \'{"x": "{id}"}\'',
            'order.body: must be an object with "id": {id} as a member',
        ),
        (
            ORDER + 'body = \'{"id": "no {id}"}\'',
            'order.body: must be an object with "id": {id} as a member',
        ),
        (ORDER + "body = '[{id}]'", 'order.body: must be an object with "id": {id} as a member'),
        (
            ORDER + "body = '{\"id\": {id}'",
            "order.body: is not JSON when filled in: Expecting ',' delimiter: line 1 column 11 "
            '(char 10): {"id": "1"',
        ),
        (
            ORDER + 'body = \'{"id": {id}, "n": NaN}\'',
            "order.body: is not JSON when filled in: NaN is not a JSON number: "
            '{"id": "1", "n": NaN}',
        ),
        (
            ORDER + "id = { integer = [1, 2] }",
            "order.id: is the order's key: it gets the order id, no generator",
        ),
        (
            ORDER + 'body = \'{"id": {id}, "n": [{n}]}\'\nn = { integer = [1, 2], optional = 0.1 }',
            'order.n.optional: only a whole member of the body can be left out: "name": {n}',
        ),
        (
            ORDER + "conflict = ['n']\nn = { choice = [1, 1.0] }",
            'order.conflict: "n" has only one value: nothing can differ in it',
        ),
        (
            ORDER + "conflict = ['amuont']\namount = { text = [1, 2] }",
            'order.conflict: "amuont" is not a field with a generator (did you mean amount?)',
        ),
        (
            ORDER + "item = { nm = 'x' }\nn = { text = [1, 2] }",
            "order.item.nm: the body has no such field (did you mean n?)",
        ),
        (
            ORDER + "item = { n = 'id' }\nn = { text = [1, 2] }",
            'order.item: "id" and "n" would both be the attribute "id"',
        ),
        (
            ORDER + "near_ids = 0.1\n" + TABLE + "key_type = 'N'",
            "order.near_ids: needs a key that is text: a number has one spelling",
        ),
        (
            ORDER + "poison = ['out-of-range']",
            'order.poison: "out-of-range" is not possible: no field has a range',
        ),
        (ORDER + "poison = []", "order.poison: must not be empty (got [])"),
        (
            ORDER + "".join(f"t{n} = {{ text = [0, 100000] }}\n" for n in range(11)),
            "order.body: may grow to 1100122 bytes; at most 1047552 can be sent",
        ),
    ],
)
def test_a_problem_is_named_by_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    assert problems_of(text, tmp_path) == [f"loadtest.toml: {problem}"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"load.orders": 0}, "--orders: must be at least 1 (got 0)"),
        (
            {"load.rate": "fast"},
            '--rate: must be "max" or a number of messages a second (got "fast")',
        ),
        ({"load.poison": -0.1}, "--poison: must be at least 0 (got -0.1)"),
        (
            {"handler.handler": "app"},
            '--handler: must be module.function, as Lambda names it (got "app")',
        ),
    ],
)
def test_a_problem_of_a_flag_is_named_by_the_flag(
    tmp_path: Path, flags: Mapping[str, object], problem: str
) -> None:
    (tmp_path / "loadtest.toml").write_text("[load]\norders = 3")
    with pytest.raises(UsageError) as caught:
        load_settings(None, flags, tmp_path)
    assert str(caught.value) == problem


def test_a_problem_in_pyproject_is_named_with_its_whole_key(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.loadtest.load]\norders = 0")
    with pytest.raises(UsageError, match=r"^pyproject.toml: tool\.loadtest\.load\.orders: must"):
        load_settings(None, {}, tmp_path)


def test_a_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    (problem,) = problems_of("[load]\norders = = 3", tmp_path)
    assert problem.startswith("loadtest.toml: is not valid TOML: ")
    assert "line 2" in problem


@pytest.mark.parametrize(
    "text",
    [
        "[handler]\ntimeout = HUGE",
        "[queue]\nvisibility_timeout = HUGE",
        "[load]\nrate = HUGE",
        "[load]\nconflicts = HUGE",
        "[load]\nseed = HUGE",
        ORDER + "n = { choice = [HUGE] }",
        ORDER + "n = { decimal = [1, HUGE, 0] }",
        ORDER + "n = { decimal = [1, 2, HUGE] }",
        ORDER + "n = { integer = [1, HUGE] }",
        ORDER + "n = { text = [1, HUGE] }",
    ],
)
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_beyond_all_bounds_is_one_problem(tmp_path: Path, text: str, digits: int) -> None:
    (problem,) = problems_of(text.replace("HUGE", "9" * digits), tmp_path)
    assert problem.startswith("loadtest.toml: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no\.toml: cannot be read: No such file or directory$"):
        load_settings(Path("no.toml"), {}, tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"^bad\.toml: is not UTF-8"):
        load_settings(Path("bad.toml"), {}, tmp_path)


def test_a_named_pyproject_must_have_our_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1")
    with pytest.raises(UsageError, match=r"^pyproject\.toml: has no \[tool\.loadtest\]$"):
        load_settings(Path("pyproject.toml"), {}, tmp_path)


# --- secrets ----------------------------------------------------------------------------


def test_values_of_the_environment_are_in_no_message_and_no_text(tmp_path: Path) -> None:
    problems = problems_of(
        "[handler]\nenvironment = { AWS_REGION = 's3cret', NAME = ['s3cret'], O = 's3cret' }",
        tmp_path,
    )
    assert len(problems) == 3
    assert "s3cret" not in "\n".join(problems)

    (tmp_path / "src").mkdir()
    (tmp_path / "loadtest.toml").write_text(WHOLE)
    settings = load_settings(None, {}, tmp_path)
    assert settings.handler.environment["TOKEN"] == "s3cret"
    assert "s3cret" not in repr(settings)


# --- anything at all --------------------------------------------------------------------

KEYS = [
    *(f"handler.{name}" for name in ("code", "handler", "timeout", "environment")),
    *(f"queue.{name}" for name in ("batch_size", "visibility_timeout", "max_receive_count")),
    *(f"queue.{name}" for name in ("batching_window", "fifo", "deduplication", "scaling")),
    *(f"order.{name}" for name in ("key", "body", "conflict", "item", "near_ids", "poison", "n")),
    *(f"load.{name}" for name in ("orders", "copies", "conflicts", "rate", "burst", "seed")),
    *("result.processed", "expect.send_lag", "load", "table", "order.n.integer", "x.y", "z"),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=4))
def test_whatever_is_asked_gives_settings_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, flags: dict[str, object]
) -> None:
    try:
        settings = load_settings(None, flags, tmp_path_factory.getbasetemp())
    except UsageError:
        return
    # What is accepted can be planned.
    order = settings.order
    assert make_plan(order, orders=3, copies=2, poison=1, conflicts=bool(order.conflict))
