"""``loadtest init``: a new configuration from templates of every kind, and from code alone."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.errors import UsageError
from loadtest.config import Settings, fill_names, load_settings, settings_of
from loadtest.found import FoundFunction
from loadtest.init_file import Beginning, settings_text
from loadtest.orders import Dice, body_text, draw_values
from loadtest.sample_event import sample_of
from loadtest.serverless import as_template, is_serverless
from loadtest.stack import find_functions
from loadtest.templates import Template, read_document
from tests.cli import Ended, loadtest

TEMPLATES = Path(__file__).parent / "templates"
ASSET = "cdk.out/asset.4c1f0e9ab7d25c6e8f3b7a90112233445566778899aabbccddeeff0011223344"


@dataclass(frozen=True, slots=True)
class Case:
    """What a folder of ``tests/templates`` must come to."""

    folder: str
    code: str
    handler: str
    timeout_s: float
    environment: dict[str, str]
    queue: dict[str, Any]
    tables: list[tuple[str, str, str, str | None, str, str]]
    order: tuple[str, str]
    questions: list[str]
    """A piece of each, in their order, without those that every file has."""
    off: list[str] = field(default_factory=list)  # lines to be switched on
    concurrency: int = 8


CASES = [
    Case(
        "sam",
        "src",
        "app.handler",
        20,
        {
            "LOG_LEVEL": "INFO",
            "STAGE": "dev",
            "ORDERS_TABLE": "{table:orders}",
            "IDEMPOTENCY_TABLE": "{table:idempotency}",
            "QUEUE_URL": "{queue_url}",
            "DLQ_ARN": "{dlq_arn}",
            "GREETING": '{"order": "{{id}}"} {{id}}',
            "TABLE_OF_STAGE": "dev/{table:orders}",
            "RETRIES": "2",
        },
        {
            "batch_size": 5,
            "batching_window_s": 2,
            "report_batch_item_failures": True,
            "visibility_timeout_s": 120,
            "max_receive_count": 4,
        },
        [
            ("orders", "order_id", "N", None, "S", "orders"),
            ("idempotency", "id", "S", None, "S", "guard"),
        ],
        ("order_id", '{"order_id": {order_id}, "quantity": {quantity}}'),
        [
            '"receipts" count as effects',
            '"audit" count as effects',
            "What is BUCKET? It is ArchiveBucket (AWS::S3::Bucket)",
            "What is PAYMENTS_URL? The parameter PaymentsUrl has no default.",
            "What is API_TOKEN? The parameter ApiToken is a secret.",
            "Which table holds the orders? Taken for: orders.",
        ],
        [
            'RECEIPTS_TOPIC_ARN = "{topic:receipts_arn}"',
            'AUDIT_QUEUE_URL = "{queue:audit_url}"',
            'call = "sns:Publish"',
            'resource = "receipts"',
            'call = "sqs:SendMessage"',
            'resource = "audit"',
        ],
        concurrency=4,
    ),
    Case(
        "cfn_yaml",
        "src",
        "orders/consumer.handler",
        15,
        {
            "TABLE": "{table:orders}",
            "QUEUE": "{queue}",
            "QUEUE_ARN": "{queue_arn}",
            "DEAD_LETTERS_URL": "{dlq_url}",
        },
        {
            "batch_size": 7,
            "batching_window_s": 0,
            "report_batch_item_failures": True,
            "visibility_timeout_s": 90,
            "max_receive_count": 6,
            "fifo": True,
            "deduplication": "content",
        },
        [("orders", "PK", "S", "SK", "N", "orders")],
        ("id", '{"id": "{id}", "quantity": {quantity}}'),
        [
            "Which folder has the code? No more is known: the template names an archive in S3. "
            "Taken for: src, which has the handler's module.",
            "How does the handler make PK and SK from the order's id?",
        ],
    ),
    Case(
        "cfn_json",
        "code",
        "app.handler",
        3,
        {"TABLE_NAME": "{table:order-results}", "LIMIT": "10", "DEBUG": "false"},
        {
            "batch_size": 10,
            "report_batch_item_failures": False,
            "visibility_timeout_s": 30,
            "max_receive_count": 3,
        },
        [("order-results", "orderId", "B", None, "S", "orders")],
        ("orderId", '{"orderId": "{orderId}", "quantity": {quantity}}'),
        [
            "What is TABLE_ARN? It is the arn of the table order-results",
        ],
    ),
    Case(
        "cdk",
        ASSET,
        "app.handler",
        30,
        {"TABLE_NAME": "{table:orders}", "OTHER_TABLE": "{table:other}"},
        {
            "batch_size": 25,
            "batching_window_s": 5,
            "report_batch_item_failures": True,
            "visibility_timeout_s": 180,
            "max_receive_count": 3,
        },
        [
            ("orders", "order_id", "S", None, "S", "orders"),
            ("other", "id", "S", None, "S", "other"),
        ],
        ("order_id", '{"order_id": "{order_id}", "quantity": {quantity}}'),
        [
            "Is a copy of the code what you want to test? cdk synth made it",
            "Is OTHER_TABLE the name of a table?",
            "Which table holds the orders?",
            "What is the key of other?",
        ],
    ),
    Case(
        "serverless",
        ".",
        "orders/app.handler",
        6,
        {
            "TABLE_NAME": "{table:shop-orders-dev}",
            "POWERTOOLS_SERVICE_NAME": "shop",
            "STAGE": "dev",
            "LEVEL": "INFO",
            "QUEUE_URL": "{queue_url}",
        },
        {
            "batch_size": 8,
            "report_batch_item_failures": True,
            "visibility_timeout_s": 36,
            "max_receive_count": 5,
        },
        [("shop-orders-dev", "orderId", "S", None, "S", "orders")],
        (
            "orderId",
            '{"orderId": "{orderId}", "amount": {amount}, "lines": [{"sku": "x", "count": 2}], '
            '"currency": "{currency}", "gift": {gift}, "note": "{note}", "body": "reserved"}',
        ),
        [
            "May the fields be as below? The body is that of events/sqs.json;",
            "What is SECRET? ${ssm:/shop/secret} is looked up",
            "What is REGIONAL? ${env:HOST} is looked up",
        ],
        concurrency=2,
    ),
    Case(
        "plain",
        "src",
        "worker.handler",
        3,
        {"ORDERS_TABLE": "{table:orders}"},
        {"batch_size": 1, "report_batch_item_failures": True},
        [("orders", "id", "S", None, "S", "orders")],
        ("id", '{"id": "{id}", "quantity": {quantity}}'),
        [
            "Is ORDERS_TABLE the name of a table?",
            "What is QUEUE_URL? The code reads it.",
            "What are the settings of the queue",
            "What is the key of orders?",
        ],
        ['QUEUE_URL = "{queue_url}"'],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder)
def test_every_kind_of_folder_gives_settings_that_load(tmp_path: Path, case: Case) -> None:
    folder = tmp_path / "project"
    shutil.copytree(TEMPLATES / case.folder, folder)
    ended = loadtest("init", cwd=folder)
    assert ended.code == 0, ended.said
    settings = load_settings(None, {}, folder)
    assert settings.handler.code.resolve() == (folder / case.code).resolve()
    assert settings.handler.handler == case.handler
    assert settings.handler.timeout_s == case.timeout_s
    assert settings.handler.environment == case.environment
    assert {name: getattr(settings.queue, name) for name in case.queue} == case.queue
    assert [
        (table.name, table.key, table.key_type, table.sort, table.sort_type, table.role)
        for table in settings.tables
    ] == case.tables
    assert (settings.order.key, settings.order.template) == case.order
    assert settings.load.concurrency == case.concurrency

    text = (folder / "loadtest.toml").read_text()
    assert text.startswith("# Settings of loadtest for ")
    assert max(len(line) for line in text.splitlines() if line.startswith("#")) <= 100
    asked = questions(text)
    made_up = [] if (folder / "events").exists() else ["What does a message look like?"]
    expected = [*case.questions, *made_up, "In which fields may a second message"]
    assert len(asked) == len(expected), asked
    for piece in expected:
        assert any(piece in question for question in asked), piece
        assert piece in ended.said
    for line in case.off:
        assert f"# {line}" in text
    # The next command that it names works.
    assert "Next: loadtest doctor, then loadtest run" in ended.said
    assert loadtest("doctor", cwd=folder).code in (0, 1)


def questions(text: str) -> list[str]:
    joined = re.sub(r"\n#   ", " ", text)
    return re.findall(r"^# QUESTION: (.*)$", joined, re.MULTILINE)


def test_what_is_switched_off_loads_when_it_is_switched_on(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATES / "sam", tmp_path, dirs_exist_ok=True)
    text = loadtest("init", "--out", "-", cwd=tmp_path).out
    switched_on = re.sub(r"^# (\w+ = |\[\[?\w+\]\]?)", r"\1", text, flags=re.MULTILINE)
    settings = settings_of(tomllib.loads(switched_on), tmp_path)
    assert [(effect.service, effect.resource) for effect in settings.effects] == [
        ("sns", "receipts"),
        ("sqs", "audit"),
    ]
    assert settings.handler.environment["RECEIPTS_TOPIC_ARN"] == "{topic:receipts_arn}"
    assert settings.queue.scaling == "aws"


# --- limits that a template breaks -------------------------------------------------------


def stack(**changes: Any) -> dict[str, Any]:
    """A template in which ``queue``, ``mapping`` and ``function`` have these properties too."""
    return {
        "Resources": {
            "Function": {
                "Type": "AWS::Lambda::Function",
                "Properties": {
                    "Handler": "app.handler",
                    "Runtime": "python3.12",
                    "Code": ".",
                    "Environment": {"Variables": {"TABLE": {"Ref": "Table"}}},
                    **changes.get("function", {}),
                },
            },
            "Mapping": {
                "Type": "AWS::Lambda::EventSourceMapping",
                "Properties": {
                    "FunctionName": {"Ref": "Function"},
                    "EventSourceArn": {"Fn::GetAtt": ["Queue", "Arn"]},
                    **changes.get("mapping", {}),
                },
            },
            "Queue": {"Type": "AWS::SQS::Queue", "Properties": changes.get("queue", {})},
            "Table": {
                "Type": "AWS::DynamoDB::Table",
                "Properties": {"KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}]},
            },
            **changes.get("resources", {}),
        },
        **changes.get("template", {}),
    }


def init(folder: Path, template: dict[str, Any] | str, *arguments: str | Path) -> Ended:
    text = template if isinstance(template, str) else json.dumps(template)
    (folder / "template.json").write_text(text)
    return loadtest("init", *arguments, cwd=folder)


def loaded(folder: Path) -> Settings:
    return load_settings(None, {}, folder)


@pytest.mark.parametrize(
    ("changes", "kept", "why", "refused"),
    [
        (
            {"function": {"Timeout": 901}, "queue": {"VisibilityTimeout": 5406}},
            "timeout = 901",
            "Lambda takes a timeout of 1 to 900 s.",
            "handler.timeout: must be at most 900",
        ),
        (
            {"function": {"Timeout": 60}},
            "visibility_timeout = 30",
            "The visibility timeout of 30 s is below the function's timeout of 60 s",
            "queue.visibility_timeout: must be at least handler.timeout, 60 s",
        ),
        (
            {"mapping": {"BatchSize": 100}},
            "batch_size = 100",
            "AWS takes a batch size of 1 to 10 here, and of more than 10 with a batching window",
            "queue.batch_size: must be at most 10",
        ),
        (
            {"mapping": {"MaximumBatchingWindowInSeconds": 5}, "queue": {"FifoQueue": True}},
            "batching_window = 5",
            "AWS has no batching window of 5 s for FIFO queues.",
            "queue.fifo: goes without a batching_window",
        ),
    ],
)
def test_a_limit_that_the_template_breaks_is_kept_and_told(
    tmp_path: Path, changes: dict[str, Any], kept: str, why: str, refused: str
) -> None:
    ended = init(tmp_path, stack(**changes))
    assert ended.code == 0
    text = (tmp_path / "loadtest.toml").read_text()
    assert re.search(rf"^{kept}( |$)", text, re.MULTILINE)
    joined = re.sub(r"\n#   ", " ", text)
    assert f"# REFUSED: {why}" in joined
    assert why in ended.said
    assert refused in ended.said
    assert loadtest("doctor", cwd=tmp_path).code == 2


def test_a_queue_of_another_stack_is_asked_for(tmp_path: Path) -> None:
    arn = {"Fn::Sub": "arn:aws:sqs:${AWS::Region}:${AWS::AccountId}:orders.fifo"}
    ended = init(tmp_path, stack(mapping={"EventSourceArn": arn}, function={"Timeout": 60}))
    assert ended.code == 0
    assert "visibility timeout and maxReceiveCount of the queue orders.fifo?" in ended.said
    assert loaded(tmp_path).queue.fifo is True


@pytest.mark.parametrize(
    ("node", "asked"),
    [
        ({"Ref": "AWS::Region"}, "AWS::Region is of the deployment"),
        ({"Ref": "Missing"}, "nothing in the template is called Missing"),
        ({"Fn::GetAtt": ["Missing", "Arn"]}, "nothing in the template is called Missing"),
        ({"Fn::ImportValue": "x"}, "no template here exports x"),
        ({"Fn::Base64": "x"}, "!Base64 is worked out when the stack is deployed"),
        ({"Fn::If": ["Maybe", 1, 2]}, "the condition Maybe is decided when the stack"),
        ("{{resolve:ssm:/a/b}}", "{{resolve:ssm:/a/b}} is looked up when the stack"),
        (["a"], "a text is expected, and it has parts"),
        ({"Fn::Join": ["", ["a", {"Ref": "Table"}, {"Ref": "AWS::Region"}]]}, "AWS::Region is of"),
    ],
)
def test_what_only_the_deployment_knows_is_a_question(
    tmp_path: Path, node: object, asked: str
) -> None:
    ended = init(tmp_path, stack(function={"Environment": {"Variables": {"VALUE": node}}}))
    assert ended.code == 0
    assert asked.lower() in ended.said.lower()
    assert "VALUE" not in loaded(tmp_path).handler.environment


@pytest.mark.parametrize(
    ("node", "value"),
    [
        ({"Fn::Select": ["1", ["a", "b"]]}, "b"),
        ({"Fn::Select": [0, {"Fn::Split": ["-", "x-y"]}]}, "x"),
        ({"Fn::Join": ["-", {"Ref": "Names"}]}, "p-q"),
        ({"Fn::Sub": ["${a}${!b} ${Name}", {"a": "A"}]}, "A${{b}} given"),
        ({"Fn::If": ["Given", "yes", "no"]}, "yes"),
        ({"Fn::FindInMap": ["Map", {"Ref": "Name"}, "k"]}, "found"),
        ({"Fn::ImportValue": "exported"}, "{table:table}"),
        (True, "true"),
        (1.10, "1.1"),
        ("", ""),
    ],
)
def test_what_the_template_itself_says_is_worked_out(
    tmp_path: Path, node: object, value: str
) -> None:
    template = {
        "Parameters": {
            "Name": {"Type": "String", "Default": "given"},
            "Names": {"Type": "CommaDelimitedList", "Default": "p, q"},
        },
        "Mappings": {"Map": {"given": {"k": "found"}}},
        "Conditions": {
            "Given": {
                "Fn::And": [
                    {"Fn::Equals": [{"Ref": "Name"}, "given"]},
                    {"Fn::Not": [{"Fn::Or": [{"Fn::Equals": ["a", "b"]}]}]},
                ]
            }
        },
        "Outputs": {"O": {"Value": {"Ref": "Table"}, "Export": {"Name": "exported"}}},
    }
    variables = {"Environment": {"Variables": {"VALUE": node}}}
    assert init(tmp_path, stack(function=variables, template=template)).code == 0
    assert loaded(tmp_path).handler.environment["VALUE"] == value


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
def test_any_text_of_the_environment_reaches_the_handler_as_it_is(value: str) -> None:
    template = stack(function={"Environment": {"Variables": {"VALUE": value}}})
    document = read_document(json.dumps(template), "template.json")
    (function,) = find_functions([Template(document, "template.json")])
    text = settings_text(function, Beginning("template.json", ".", "app.handler", True))
    settings = settings_of(tomllib.loads(text), Path())
    environment = settings.handler.environment
    if "{{resolve:" not in value:
        assert fill_names(environment, {})["VALUE"] == value


# --- saved events ------------------------------------------------------------------------


def event(body: str) -> str:
    return json.dumps({"Records": [{"eventSource": "aws:sqs", "body": body}]})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"Records": []}',
        '{"Records": [{"eventSource": "aws:s3", "body": "{}"}]}',
        event("no JSON"),
        event("[1]"),
        event('{"name": "nobody"}'),  # no id
        event('{"id": "1", "note": ["{other}"]}'),  # looks like a place for a field
        event('{"Type": "Notification", "Message": "{}", "MessageId": "1", "TopicArn": "t"}'),
        event('{"Type": "Notification", "Message": "{", "MessageId": "1", "TopicArn": "t"}'),
        event('{"id": "1", "detail-type": "Order", "detail": []}'),
    ],
)
def test_an_event_without_a_plain_order_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "event.json").write_text(text)
    ended = init(tmp_path, stack())
    assert ended.code == 0
    assert "What does a message look like? The body below is made up" in ended.said
    assert loaded(tmp_path).order.template == '{"id": "{id}", "quantity": {quantity}}'


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["key", "body", "conflict", "item", "quantity", "order_id"]
)


@given(
    body=st.dictionaries(NAMES, VALUES, max_size=5), order_id=st.text("aB-7") | st.integers(0, 99)
)
def test_settings_from_any_saved_order_load(body: dict[str, Any], order_id: object) -> None:
    sample = sample_of(event(json.dumps(body | {"id": order_id})), "id")
    if sample is None:
        assert "{" in json.dumps(body, ensure_ascii=False)[1:]
        return
    (function,) = find_functions([Template(stack(), "t")])
    beginning = Beginning("t", ".", "app.handler", True, sample=sample, sample_source="e")
    settings = settings_of(tomllib.loads(settings_text(function, beginning)), Path())
    values = draw_values(settings.order, Dice(1, "test"))
    drawn = json.loads(body_text(settings.order, "x-1", values))
    assert drawn.keys() == {*body, "id"}
    assert settings.order.key == "id"


@pytest.mark.parametrize(
    ("resources", "envelope"),
    [
        (
            {
                "Rule": {
                    "Type": "AWS::Events::Rule",
                    "Properties": {"Targets": [{"Arn": {"Fn::GetAtt": ["Queue", "Arn"]}}]},
                }
            },
            "eventbridge",
        ),
        (
            {
                "Rule": {
                    "Type": "AWS::Events::Rule",
                    "Properties": {
                        "Targets": [{"Arn": {"Fn::GetAtt": ["Queue", "Arn"]}, "InputPath": "$.a"}]
                    },
                }
            },
            None,
        ),
        (
            {
                "Bucket": {
                    "Type": "AWS::S3::Bucket",
                    "Properties": {
                        "NotificationConfiguration": {
                            "QueueConfigurations": [{"Queue": {"Fn::GetAtt": ["Queue", "Arn"]}}]
                        }
                    },
                }
            },
            "s3",
        ),
        (
            {
                "Topic": {
                    "Type": "AWS::SNS::Topic",
                    "Properties": {
                        "Subscription": [
                            {"Protocol": "sqs", "Endpoint": {"Fn::GetAtt": ["Queue", "Arn"]}}
                        ]
                    },
                }
            },
            "sns",
        ),
    ],
)
def test_what_a_sender_puts_around_a_message_is_told(
    tmp_path: Path, resources: dict[str, Any], envelope: str | None
) -> None:
    assert init(tmp_path, stack(resources=resources)).code == 0
    found = loaded(tmp_path).order.envelope
    assert (found and found.kind) == envelope


@pytest.mark.parametrize(
    ("around", "kind"),
    [
        ({"Type": "Notification", "TopicArn": "t", "Message": '{"id": "1", "n": 5}'}, "sns"),
        ({"detail-type": "Order", "id": "e", "detail": {"id": "1", "n": 5}}, "eventbridge"),
    ],
)
def test_a_saved_event_may_have_the_order_wrapped(
    tmp_path: Path, around: dict[str, Any], kind: str
) -> None:
    (tmp_path / "event.json").write_text(event(json.dumps(around)))
    assert init(tmp_path, stack()).code == 0
    order = loaded(tmp_path).order
    assert order.template == '{"id": "{id}", "n": {n}}'
    assert order.envelope
    assert order.envelope.kind == kind


# --- any template ------------------------------------------------------------------------


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, as the keys that lead to it."""
    entries = node.items() if isinstance(node, dict) else enumerate(node)
    found = [path] if path else []
    for name, entry in entries:
        found += places(entry, (*path, name)) if isinstance(entry, dict | list) else [(*path, name)]
    return found


SAM_DOCUMENT = read_document((TEMPLATES / "sam" / "template.yaml").read_text(), "t")
SERVERLESS_DOCUMENT = read_document((TEMPLATES / "serverless" / "serverless.yml").read_text(), "t")
DOCUMENTS = [(one, at) for one in (SAM_DOCUMENT, SERVERLESS_DOCUMENT) for at in places(one)]
NODES = st.recursive(
    st.none() | st.text(max_size=12) | st.sampled_from(["${self:custom}", "Orders", "-1", "1e9"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Ref", "Fn::Sub", "Fn::Join", "Fn::If", "Fn::GetAtt", "Name", "a"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(place=st.sampled_from(DOCUMENTS), node=NODES)
def test_whatever_stands_in_a_template_gives_a_file_or_an_error(
    place: tuple[dict[str, Any], tuple[Any, ...]], node: Any
) -> None:
    document, (*path, last) = place
    changed = copy.deepcopy(document)
    parent: Any = changed
    for name in path:
        parent = parent[name]
    parent[last] = node
    functions: tuple[FoundFunction, ...] = ()
    with contextlib.suppress(UsageError):  # it refers to itself
        template = as_template(changed, "t") if is_serverless(changed) else changed
        functions = find_functions([Template(template, "t")])
    for function in functions:
        text = settings_text(function, Beginning("t", ".", "app.handler", True))
        data = tomllib.loads(text)
        with contextlib.suppress(UsageError):  # as init tells when it has written the file
            settings_of(data, Path())


# --- choosing ---------------------------------------------------------------------------


def test_several_functions_behind_queues_are_listed_and_one_can_be_named(tmp_path: Path) -> None:
    other = {
        "Other": {
            "Type": "AWS::Serverless::Function",
            "Properties": {
                "Handler": "app.other",
                "CodeUri": ".",
                "Events": {
                    "Q": {
                        "Type": "SQS",
                        "Properties": {"Queue": {"Fn::GetAtt": ["Queue", "Arn"]}},
                    }
                },
            },
        }
    }
    ended = init(tmp_path, stack(resources=other))
    assert ended.code == 2
    assert "choose with --function NAME: Function (template.json) Other (template.json)" in (
        ended.said
    )
    assert not (tmp_path / "loadtest.toml").exists()
    assert init(tmp_path, stack(resources=other), "--function", "Other").code == 0
    assert loaded(tmp_path).handler.handler == "app.other"
    wrong = init(tmp_path, stack(resources=other), "--function", "Nobody", "--force")
    assert wrong.code == 2
    assert "--function Nobody: no such function is behind a queue" in wrong.said


def test_a_file_that_is_there_stays_unless_forced(tmp_path: Path) -> None:
    place = tmp_path / "loadtest.toml"
    place.write_text("mine")
    ended = init(tmp_path, stack())
    assert ended.code == 2
    assert "loadtest.toml: is there already; --force replaces it, --out names another" in ended.said
    assert place.read_text() == "mine"
    assert init(tmp_path, stack(), "--force").code == 0
    assert loaded(tmp_path).handler.handler == "app.handler"


def test_paths_follow_the_new_file(tmp_path: Path) -> None:
    project, settings = tmp_path / "project", tmp_path / "settings"
    shutil.copytree(TEMPLATES / "sam", project)
    settings.mkdir()
    place = settings / "mine.toml"
    template = project / "template.yaml"
    ended = loadtest("init", "project", "--template", template, "--out", place, cwd=tmp_path)
    assert ended.code == 0
    assert 'code = "../project/src"' in place.read_text()
    assert f"loadtest run --config {place}" in ended.said
    assert load_settings(place, {}, tmp_path).handler.timeout_s == 20


@pytest.mark.parametrize("arguments", [(), ("--template", "template.json")])
def test_other_files_of_the_folder_do_not_disturb(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "broken.yaml").write_text("Resources: [AWS::")
    (tmp_path / "schema.json").write_text('{"title": "Resources of AWS::Something"}')
    assert init(tmp_path, stack(), *arguments).code == 0
    assert loaded(tmp_path).handler.handler == "app.handler"


def test_the_only_template_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    ended = init(tmp_path, '{"Resources": "AWS::"')
    assert ended.code == 2
    assert "template.json, line 1: is not valid JSON" in ended.said


def test_a_table_of_a_template_beside_the_named_one_is_found(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATES / "cdk", tmp_path, dirs_exist_ok=True)
    template = tmp_path / "cdk.out" / "ConsumerStack.template.json"
    assert loadtest("init", "--template", template, cwd=tmp_path).code == 0
    assert loaded(tmp_path).handler.environment["TABLE_NAME"] == "{table:orders}"


# --- many ways to say the same --------------------------------------------------------------

SAM = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  StreamArn: {Type: String}
Resources:
  Function:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: consumer
      CodeUri: app.py
      Handler: app.handler
      Layers:
        - !Ref Common
        - arn:aws:lambda:eu-west-1:017000801446:layer:AWSLambdaPowertoolsPython:3
      Environment:
        Variables:
          QUEUE_URL: !Sub https://sqs.${AWS::Region}.amazonaws.com/${AWS::AccountId}/jobs
      Events:
        Topic:
          Type: SNS
          Properties:
            Topic: !Ref Topic
            SqsSubscription:
              QueueArn: !GetAtt Jobs.Arn
              QueueUrl: !Ref Jobs
              BatchSize: 3
  Retries:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      FunctionName: !Sub arn:aws:lambda:${AWS::Region}:${AWS::AccountId}:function:consumer:live
      EventSourceArn: !GetAtt Again.Arn
      FilterCriteria: {Filters: [{Pattern: "{}"}]}
  Stream:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      FunctionName: consumer
      EventSourceArn: !Ref StreamArn
      StartingPosition: LATEST
  Common:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: layers/common}
  Jobs: {Type: AWS::SQS::Queue, Properties: {QueueName: jobs}}
  Again: {Type: AWS::SQS::Queue}
  Topic: {Type: AWS::SNS::Topic}
"""


def test_topics_layers_aliases_and_other_queues_are_understood(tmp_path: Path) -> None:
    (tmp_path / "template.yml").write_text(SAM)
    (tmp_path / "app.py").write_text("import os\nos._exit(1)\n")
    (tmp_path / "layers" / "common" / "python").mkdir(parents=True)
    ended = loadtest("init", cwd=tmp_path)
    assert ended.code == 0, ended.said
    settings = loaded(tmp_path)
    assert settings.handler.code == tmp_path
    assert settings.handler.layers == (tmp_path / "layers" / "common",)
    assert settings.handler.environment == {"QUEUE_URL": "{queue_url}"}
    assert settings.queue.batch_size == 3
    assert settings.order.envelope
    assert settings.order.envelope.kind == "sns"
    assert "Where is the layer AWSLambdaPowertoolsPython as Lambda unpacks it" in ended.said
    assert "The function is behind other queues too: again. Is this the one?" in ended.said
    assert "filters messages" not in ended.said


def test_filters_and_absent_modules_are_told(tmp_path: Path) -> None:
    filters = {"FilterCriteria": {"Filters": [{"Pattern": "{}"}]}}
    ended = init(tmp_path, stack(mapping=filters))
    assert "The template filters messages (FilterCriteria); a run delivers them all." in ended.said
    assert "Where is app? The code folder has no such module." in ended.said


def test_a_handler_that_the_template_leaves_out_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("")
    (tmp_path / "worker" / "main.py").write_text("def run(event, context): event['Records']\n")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "venv" / "other.py").write_text("def run(event, context): event['Records']\n")
    code = {"Code": {"ImageUri": "repository/image"}, "Handler": None}
    ended = init(tmp_path, stack(function=code))
    assert ended.code == 0
    assert "the code is in a container image. Taken for: ., which has the handler's" in ended.said
    assert "Taken for: worker.main.run, the only one in the code." in ended.said
    assert loaded(tmp_path).handler.handler == "worker.main.run"


def test_a_function_that_no_queue_leads_to_is_told(tmp_path: Path) -> None:
    other = {"Api": {"Type": "AWS::Lambda::Function", "Properties": {"Handler": "a.b"}}}
    ended = init(tmp_path, stack(resources=other), "--function", "Api")
    assert ended.code == 2
    assert "no event source mapping leads from a queue to Api" in ended.said


SERVERLESS = """
service: s
provider:
  name: aws
  stage: test
  environment:
    STAGE: ${sls:stage}
    NESTED: ${env:NAME, ${self:custom.name}}
    NUMBER: ${param:number}
    LATER: a-${file(x.yml):y}
    PLACE: ${env:PLACE, ${self:custom.place}}
custom:
  place: !Ref AWS::Region
  name: ${opt:name, 'by-default'}
params:
  default:
    number: 7
functions:
  - worker:
      image: repository/image
      handler: app.handler
      module: code
      events:
        - sqs: arn:aws:sqs:eu-west-1:123456789012:jobs
"""


def test_variables_of_serverless_follow_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "serverless.yml").write_text(SERVERLESS)
    ended = loadtest("init", cwd=tmp_path)
    assert ended.code == 0, ended.said
    environment = loaded(tmp_path).handler.environment
    assert environment == {"STAGE": "test", "NESTED": "by-default", "NUMBER": "7"}
    assert "PLACE? AWS::Region is of the deployment." in ended.said
    assert "LATER? ${file(x.yml):y} is looked up when the stack is deployed." in ended.said
    assert "No more is known: the code is in a container image." in ended.said
    assert "visibility timeout and maxReceiveCount of the queue jobs?" in ended.said


# --- what cannot be read -----------------------------------------------------------------

QUEUE_EVENT = """
      Events:
        Q:
          Type: SQS
          Properties:
            Queue: !GetAtt Queue.Arn
"""
FUNCTION = """
Resources:
  Function:
    Type: AWS::Serverless::Function
    Properties:
      Handler: app.handler
"""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.yaml", "Resources: [1", "t.yaml, line 1: is not valid YAML"),
        ("t.yaml", "Resources:\n\tA: 1", "line 2: is not valid YAML: found character '\\t' that"),
        ("t.yaml", "Resources:\n\tA: 1", "YAML indents with spaces, not tabs"),
        ("t.json", '{"Resources":\n }', "t.json, line 2: is not valid JSON: Expecting value"),
        ("t.yaml", "- 1", "t.yaml: is no template: it has no Resources"),
        ("t.yaml", "", "t.yaml: is no template: it has no Resources"),
        ("t.yaml", "a: 1", "t.yaml: is no template: it has no Resources"),
        ("t.yaml", "a: \ud800", "t.yaml: is not UTF-8 text"),
        ("t.yaml", "Resources: !!python/name:os.system x", "could not determine a constructor"),
        (
            "t.json",
            json.dumps(stack(function={"Description": 1})).replace("app.handler", "\\ud800.a"),
            "is no Unicode",
        ),
        ("t.json", "[" * 1_100, "t.json: is nested too deeply"),
        ("t.json", '{"Resources":' * 3_000, "t.json: is nested too deeply"),
        ("t.yaml", "#" * 1_048_577, "t.yaml: has more than 1048576 bytes"),
        ("t.yaml", "Resources: {}", "t.yaml: has no Lambda function"),
        ("t.yaml", FUNCTION, "t.yaml: no function is behind a queue"),
        ("t.yaml", f"{FUNCTION}      CodeUri: gone{QUEUE_EVENT}", "its code, gone, is not there"),
        (
            "t.yaml",
            f"{FUNCTION}      CodeUri: a.zip{QUEUE_EVENT}",
            "its code, a.zip, is an archive",
        ),
        (
            "t.yaml",
            f"{FUNCTION}      Runtime: nodejs20.x{QUEUE_EVENT}",
            "loadtest runs Python handlers, and none is: Function (nodejs20.x)",
        ),
        (
            "t.yaml",
            f"{FUNCTION}      Timeout: &t {{Fn::Join: ['', [*t]]}}{QUEUE_EVENT}",
            "t.yaml: refers to itself without end",
        ),
        (
            "t.yaml",
            f"Conditions:\n  A: {{Condition: B}}\n  B: !Not [{{Condition: A}}]\n{FUNCTION}"
            "    Condition: A",
            "t.yaml: Conditions refer to each other without end",
        ),
        (
            "serverless.yml",
            "service: s\nprovider: {name: aws}\ncustom: {a: '${self:custom.b}', "
            "b: 'x${self:custom.a}'}\nfunctions: {f: {handler: '${self:custom.a}'}}",
            "serverless.yml: its variables refer to each other without end",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_told_and_nothing_written(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8", errors="surrogatepass")
    (tmp_path / "a.zip").touch()
    ended = loadtest("init", "--template", path, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.said
    assert not (tmp_path / "loadtest.toml").exists()


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    levels = "".join(
        f"  l{number}: &l{number}\n    Fn::Join: ['', [{', '.join([f'*l{number - 1}'] * 20)}]]\n"
        for number in range(1, 20)
    )
    text = f"Extra:\n  l0: &l0 x\n{levels}{FUNCTION}      Timeout: *l19{QUEUE_EVENT}"
    (tmp_path / "t.yaml").write_text(text)
    ended = loadtest("init", "--template", "t.yaml", cwd=tmp_path)
    assert ended.code == 2
    assert "t.yaml: refers to itself without end" in ended.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "has no template, and no Python function of (event, context)"),
        (["gone"], "gone: is no folder"),
        (["--template", "gone.yaml"], "gone.yaml: cannot be read: No such file or directory"),
        (["--out", "."], "is a folder; name a file with --out"),
        (["--out", "gone/loadtest.toml"], "gone/loadtest.toml: its folder is not there"),
    ],
)
def test_a_folder_with_nothing_in_it_is_told(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    ended = loadtest("init", *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.said
    assert list(tmp_path.iterdir()) == []


def test_several_handlers_in_a_folder_are_listed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("def handler(event, context): event['Records']\n")
    (tmp_path / "broken.py").write_text("def handler(event, context:\n")
    ended = loadtest("init", cwd=tmp_path)
    assert ended.code == 2
    assert "choose with --function NAME: one.handler (one.py) two.handler (two.py)" in ended.said
    assert loadtest("init", "--function", "two.handler", cwd=tmp_path).code == 0
    assert loaded(tmp_path).handler.handler == "two.handler"
