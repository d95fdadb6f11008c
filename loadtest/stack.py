"""The functions of some templates, and the queues before them. Pure.

Facts without a note are from the CloudFormation template reference and the SAM specification.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadtest.found import (
    Found,
    FoundFunction,
    FoundMapping,
    FoundOther,
    FoundQueue,
    FoundTable,
    FoundTopic,
    Named,
    Unknown,
    Value,
)
from loadtest.orders import EnvelopeKind
from loadtest.templates import Part, Resource, Template, Text, as_dict, render

_FUNCTIONS = ("AWS::Serverless::Function", "AWS::Lambda::Function")
_TABLES = ("AWS::DynamoDB::Table", "AWS::DynamoDB::GlobalTable", "AWS::Serverless::SimpleTable")
_QUEUE = "AWS::SQS::Queue"
_TOPIC = "AWS::SNS::Topic"
_MAPPING = "AWS::Lambda::EventSourceMapping"

_NAME_OF = {
    **dict.fromkeys(_FUNCTIONS, "FunctionName"),
    **dict.fromkeys(_TABLES, "TableName"),
    _QUEUE: "QueueName",
    _TOPIC: "TopicName",
}


def find_functions(templates: Sequence[Template]) -> tuple[FoundFunction, ...]:
    """The functions of some templates that may import each other's exports.

    :raises UsageError: a template refers to itself without end.
    """
    for template in templates:
        template.siblings = templates
    return tuple(_Reader(templates).functions())


class _Reader:
    def __init__(self, templates: Sequence[Template]) -> None:
        self._resources = [
            resource for template in templates for resource in template.resources.values()
        ]
        self._names: dict[Resource, str] = {}
        self._physical = {
            resource: name
            for resource in self._resources
            if (property_ := _NAME_OF.get(resource.type))
            and (name := render(resource.template.text(resource.properties.get(property_))))
        }

    def functions(self) -> Iterator[FoundFunction]:
        tables = tuple(map(self._table, self._of_type(*_TABLES)))
        for resource in self._of_type(*_FUNCTIONS):
            template, own = resource.template, resource.properties
            variables = template.table(template.table(own.get("Environment")).get("Variables"))
            code, copied = self._code(resource)
            yield FoundFunction(
                name=resource.logical_id,
                label=template.label,
                handler=_plain(template.text(own.get("Handler"))),
                code=code,
                runtime=_text_or_none(template.text(own.get("Runtime"))),
                timeout_s=template.number(own.get("Timeout")),
                environment={
                    str(name): self._environment_value(str(name), template.text(node))
                    for name, node in variables.items()
                    if template.value(node) is not None
                },
                mappings=tuple(self._mappings_of(resource)),
                tables=tables,
                copied_code=copied,
                layers=tuple(self._layers(resource)),
            )

    def _of_type(self, *types: str) -> Iterator[Resource]:
        return (resource for resource in self._resources if resource.type in types)

    def _code(self, function: Resource) -> tuple[str | Unknown | None, bool]:
        """The code folder, and whether it is a copy that a build made."""
        metadata, own, template = function.metadata, function.properties, function.template
        asset = metadata.get("aws:asset:path")  # of the CDK, relative to the template
        if isinstance(asset, str) and metadata.get("aws:asset:property", "Code") == "Code":
            return asset, asset.startswith("asset.")
        node = own.get("CodeUri", own.get("Code"))
        value = template.value(node)
        if isinstance(value, dict):
            key = render(template.text(value.get("S3Key", value.get("Key"))))
            hashed = re.fullmatch(r"([0-9a-f]{64})\.zip", key)
            if hashed:  # how the CDK names its assets
                return f"asset.{hashed[1]}", True
            if "ZipFile" in value:
                return Unknown("ZipFile", "the code stands in the template itself"), False
            if "ImageUri" in value:
                return Unknown("ImageUri", "the code is in a container image"), False
            return (Unknown(key, "the template names an archive in S3") if key else None), False
        if "InlineCode" in own:
            return Unknown("InlineCode", "the code stands in the template itself"), False
        code = _plain(template.text(node))
        if isinstance(code, str) and code.startswith(("s3://", "https://")):
            return Unknown(code, "the template names an archive in S3"), False
        return code, False

    def _layers(self, function: Resource) -> Iterator[str]:
        template = function.template
        for node in template.entries(function.properties.get("Layers")):
            text = template.text(node)
            match text:
                case (Part(resource, _),):
                    own = resource.properties
                    content = own.get("ContentUri", own.get("Content"))
                    asset = resource.metadata.get("aws:asset:path")
                    folder = _text_or_none(resource.template.text(content))
                    yield str(asset or folder or resource.logical_id)
                case _:
                    # An ARN ends with the layer's name and its version.
                    yield re.sub(r":\d+$", "", render(text).rpartition(":layer:")[2])

    # Event source mappings

    def _mappings_of(self, function: Resource) -> Iterator[FoundMapping]:
        template = function.template
        for node in template.table(function.properties.get("Events")).values():
            event = template.table(node)
            own = template.table(event.get("Properties"))
            match render(template.text(event.get("Type"))):
                case "SQS":
                    yield self._mapping(template, own, own.get("Queue"))
                case "SNS" if (subscription := own.get("SqsSubscription")) is not None:
                    yield from self._subscription(template, own, subscription)
        for mapping in self._of_type(_MAPPING):
            settings, source = mapping.properties, mapping.properties.get("EventSourceArn")
            if (
                "StartingPosition" not in settings  # of a stream
                and self._function_named(mapping.template, settings.get("FunctionName")) is function
                and self._may_be_a_queue(mapping.template, source)
            ):
                yield self._mapping(mapping.template, settings, source)

    def _subscription(
        self, template: Template, own: Mapping[str, Any], node: object
    ) -> Iterator[FoundMapping]:
        """SAM's queue between a topic and the function."""
        topic = _bare(template.text(own.get("Topic")))
        settings = template.value(node)
        if isinstance(settings, dict):
            mapping = self._mapping(template, settings, settings.get("QueueArn"))
            if not template.is_true(own.get("RawMessageDelivery")):
                queue = replace(mapping.queue, envelope=EnvelopeKind.SNS, sender=topic)
                mapping = replace(mapping, queue=queue)
            yield mapping
        elif template.is_true(node):
            queue = FoundQueue("queue", declared=True, envelope=EnvelopeKind.SNS, sender=topic)
            yield FoundMapping(queue)

    def _function_named(self, template: Template, node: object, depth: int = 0) -> Resource | None:
        text = template.text(node)
        match text:
            case (Part(resource, _),) if resource.type in _FUNCTIONS:
                return resource
            case (Part(resource, _),) if depth < 3:  # an alias, and the version it names
                name = resource.properties.get("FunctionName")
                return self._function_named(resource.template, name, depth + 1)
        shown = render(text)
        for function in self._of_type(*_FUNCTIONS):
            name = self._physical.get(function)
            if name is not None and (shown == name or f":function:{name}" in shown):
                return function
        return None

    def _may_be_a_queue(self, template: Template, node: object) -> bool:
        match self._recognised(template.text(node)):
            case (Part(resource, _),):
                return resource.type == _QUEUE
            case text:
                shown = render(text)
                return ":sqs:" in shown or not shown.startswith("arn:")

    def _mapping(self, template: Template, own: Mapping[str, Any], source: object) -> FoundMapping:
        answers = own.get("FunctionResponseTypes")
        reports = [render(template.text(entry)) for entry in template.entries(answers)]
        scaling = template.table(own.get("ScalingConfig"))
        return FoundMapping(
            queue=self._queue_at(template.text(source)),
            batch_size=template.number(own.get("BatchSize")),
            batching_window_s=template.number(own.get("MaximumBatchingWindowInSeconds")),
            report_batch_item_failures="ReportBatchItemFailures" in reports,
            maximum_concurrency=template.number(scaling.get("MaximumConcurrency")),
            filtered=bool(template.table(own.get("FilterCriteria"))),
        )

    # Queues, tables, names

    def _queue_at(self, text: Text) -> FoundQueue:
        match self._recognised(text):
            case (Part(resource, _),) if resource.type == _QUEUE:
                return self._queue(resource)
        shown = render(text)
        name = re.split(r"[:/]", shown)[-1] if ":sqs:" in shown else shown
        return FoundQueue(name, declared=False, fifo=name.endswith(".fifo"))

    def _queue(self, resource: Resource) -> FoundQueue:
        template, own = resource.template, resource.properties
        policy = template.value(own.get("RedrivePolicy"))
        if isinstance(policy, tuple):
            policy = _json_object(render(policy))
        redrive = policy if isinstance(policy, dict) else {}
        target = redrive.get("deadLetterTargetArn")
        dead_letter = None
        if target is not None:
            text = self._recognised(template.text(target))
            match text:
                case (Part(other, _),):
                    dead_letter = self._name(other)
                case _:
                    dead_letter = re.split(r"[:/]", render(text))[-1]
        envelope, sender = self._envelope(resource)
        return FoundQueue(
            name=self._name(resource),
            declared=True,
            visibility_timeout_s=template.number(own.get("VisibilityTimeout")),
            max_receive_count=template.number(redrive.get("maxReceiveCount")),
            dead_letter=dead_letter,
            fifo=template.is_true(own.get("FifoQueue")),
            content_deduplication=template.is_true(own.get("ContentBasedDeduplication")),
            envelope=envelope,
            sender=sender,
        )

    def _envelope(self, queue: Resource) -> tuple[EnvelopeKind | None, str]:
        """What the queue's sender puts around an order, and the sender."""
        for sender in self._resources:
            template, own = sender.template, sender.properties
            match sender.type:
                case "AWS::SNS::Subscription":
                    if self._subscribes(template, own, queue):
                        return EnvelopeKind.SNS, _bare(template.text(own.get("TopicArn")))
                case "AWS::SNS::Topic":
                    for node in template.entries(own.get("Subscription")):
                        if self._subscribes(template, as_dict(node), queue):
                            return EnvelopeKind.SNS, sender.logical_id
                case "AWS::Events::Rule":
                    for node in map(as_dict, template.entries(own.get("Targets"))):
                        changed = {"Input", "InputPath", "InputTransformer"} & node.keys()
                        if not changed and self._is_at(template, node.get("Arn"), queue):
                            return EnvelopeKind.EVENTBRIDGE, sender.logical_id
                case "AWS::S3::Bucket":
                    notices = template.table(own.get("NotificationConfiguration"))
                    for node in map(as_dict, template.entries(notices.get("QueueConfigurations"))):
                        if self._is_at(template, node.get("Queue"), queue):
                            return EnvelopeKind.S3, sender.logical_id
        return None, ""

    def _subscribes(self, template: Template, own: Mapping[str, Any], queue: Resource) -> bool:
        is_raw = template.is_true(own.get("RawMessageDelivery"))
        return not is_raw and self._is_at(template, own.get("Endpoint"), queue)

    def _is_at(self, template: Template, node: object, queue: Resource) -> bool:
        text = self._recognised(template.text(node))
        return len(text) == 1 and isinstance(text[0], Part) and text[0].resource is queue

    def _table(self, resource: Resource) -> FoundTable:
        template, own = resource.template, resource.properties
        name = self._name(resource)
        if resource.type == "AWS::Serverless::SimpleTable":
            primary = template.table(own.get("PrimaryKey"))
            kind = render(template.text(primary.get("Type")))
            return FoundTable(
                name,
                render(template.text(primary.get("Name"))) or "id",
                {"Number": "N", "Binary": "B"}.get(kind, "S"),
            )
        types = {
            render(template.text(entry.get("AttributeName"))): render(
                template.text(entry.get("AttributeType"))
            )
            for entry in map(as_dict, template.entries(own.get("AttributeDefinitions")))
        }
        keys = {
            render(template.text(entry.get("KeyType"))): render(
                template.text(entry.get("AttributeName"))
            )
            for entry in map(as_dict, template.entries(own.get("KeySchema")))
        }
        key, sort = keys.get("HASH"), keys.get("RANGE")
        return FoundTable(name, key, _type(types, key), sort, _type(types, sort))

    def _name(self, resource: Resource) -> str:
        """A short name that no other resource of the kind has."""
        if resource not in self._names:
            name = _short_name(resource, self._physical.get(resource))
            taken = {
                other_name
                for other, other_name in self._names.items()
                if _NAME_OF.get(other.type) == _NAME_OF.get(resource.type)
            }
            candidates = [name, _kebab(resource.logical_id)]
            candidates += [f"{name}-{number}" for number in range(2, len(taken) + 3)]
            self._names[resource] = next(one for one in candidates if one not in taken)
        return self._names[resource]

    def _recognised(self, text: Text) -> Text:
        """A text that is the name, ARN or URL of a resource here, as a reference to it."""
        if len(text) == 1 and isinstance(text[0], Part):
            return text
        shown = render(text)
        for resource, name in self._physical.items():
            attributes = _BY_NAME.get(resource.type)
            if attributes is None:
                continue
            plain, arn, url = attributes
            if shown == name:
                return (Part(resource, plain),)
            service = resource.type.split("::")[1].lower()
            is_arn = shown.startswith("arn:") and f":{service}:" in shown
            if is_arn and re.split(r"[:/]", shown)[-1] == name:
                return (Part(resource, arn),)
            if url is not None and shown.startswith("https://") and shown.endswith(f"/{name}"):
                return (Part(resource, url),)
        return text

    def _environment_value(self, variable: str, text: Text) -> Value:
        # Services and stages are often called like a table.
        if not re.search(r"SERVICE|NAMESPACE|STAGE|ENV$|ENVIRONMENT|LOG", variable.upper()):
            text = self._recognised(text)
        return tuple(
            self._named(piece) if isinstance(piece, Part) else piece for piece in text
        ) or ("",)

    def _named(self, part: Part) -> Named:
        resource, attribute = part.resource, part.attribute
        words = _PARTS.get(resource.type, {})
        found: Found
        if resource.type in _TABLES:
            found = self._table(resource)
        elif resource.type == _QUEUE:
            found = self._queue(resource)
        elif resource.type == _TOPIC:
            found = FoundTopic(self._name(resource))
        else:
            found = FoundOther(resource.logical_id, resource.type)
        return Named(found, words.get(attribute, attribute or "Ref"))


# What Ref ("") and the attributes of a resource give.
_PARTS: Mapping[str, Mapping[str, str]] = {
    **{kind: {"": "name", "Arn": "arn"} for kind in _TABLES},
    _QUEUE: {"": "url", "QueueUrl": "url", "Arn": "arn", "QueueName": "name"},
    _TOPIC: {"": "arn", "TopicArn": "arn", "TopicName": "name"},
}
# The attributes that a resource's name, ARN and URL stand for.
_BY_NAME: Mapping[str, tuple[str, str, str | None]] = {
    **dict.fromkeys(_TABLES[:2], ("", "Arn", None)),
    _QUEUE: ("QueueName", "Arn", ""),
    _TOPIC: ("TopicName", "", None),
}


def _bare(text: Text) -> str:
    """A reference's name alone."""
    return render(text).strip("${}")


def _plain(text: Text) -> str | Unknown | None:
    if not text:
        return None
    for piece in text:
        if isinstance(piece, Unknown):
            return Unknown(render(text), piece.why)
        if isinstance(piece, Part):
            return Unknown(render(text), f"{render(text)} is known when the stack is deployed")
    return render(text) or None


def _text_or_none(text: Text) -> str | None:
    plain = _plain(text)
    return plain if isinstance(plain, str) else None


def _json_object(text: str) -> dict[str, Any]:
    try:
        return as_dict(json.loads(text, parse_int=str, parse_float=str))
    except ValueError:
        return {}


def _type(types: Mapping[str, str], attribute: str | None) -> str:
    kind = types.get(attribute or "", "S")
    return kind if kind in ("S", "N", "B") else "S"


def _short_name(resource: Resource, physical: str | None) -> str:
    if physical is not None and re.fullmatch(r"(?=.{1,38}$)[A-Za-z0-9_-]+(\.fifo)?", physical):
        return physical
    # The CDK puts eight digits of a hash behind the name of its construct.
    name = re.sub(r"[0-9A-F]{8}$", "", resource.logical_id) or resource.logical_id
    kind = {_QUEUE: "Queue", _TOPIC: "Topic"}.get(resource.type, "Table")
    words: list[str] = []
    if name == kind and physical is not None:  # such as ${AWS::StackName}-orders
        words = re.findall(r"[a-z][a-z0-9-]*[a-z0-9]", re.sub(r"\$\{[^}]*\}", " ", physical))
    short = _kebab(name.removesuffix(kind)) or max(words, key=len, default=kind.lower())
    own = resource.properties
    is_fifo = resource.template.is_true(own.get("FifoQueue", own.get("FifoTopic")))
    return f"{short[:33]}.fifo" if is_fifo else short[:38]


def _kebab(name: str) -> str:
    """``DBOrderEvents`` -> ``db-order-events``"""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()
    return re.sub(r"[^a-z0-9-]+", "-", words).strip("-")
