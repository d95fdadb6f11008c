"""The text of a new ``loadtest.toml``, from what was found. Pure.

What could not be told is a comment that begins with ``# QUESTION:``, what AWS or a run would
refuse one that begins with ``# REFUSED:``; both are followed by an answer to start with.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from analysis.item_kinds import ANYTHING
from loadtest.config import escaped, variable_problem
from loadtest.found import (
    FoundFunction,
    FoundMapping,
    FoundQueue,
    FoundTable,
    FoundTopic,
    Named,
    Number,
    Unknown,
    Value,
)
from loadtest.sample_event import OrderSample

_WIDTH = 98
_NOTE_COLUMN = 35

# Lambda's and SQS's own defaults and limits: API references of CreateFunction,
# CreateEventSourceMapping and CreateQueue.
_TIMEOUT_S, _LONGEST_TIMEOUT_S = 3, 900
_BATCH_SIZE, _LARGEST_BATCH = 10, 10_000
_VISIBILITY_TIMEOUT_S = 30
_LONGEST_WINDOW_S = 300
_LONG_WAIT_S = 60
"""From here on a newcomer should know that a run waits for its dead letters."""
_USUAL_CONCURRENCY = 8

_GUARD = re.compile(r"idempot|dedup|lock|guard|claim|lease", re.IGNORECASE)
_FIELD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_GENERIC_KEY = re.compile(r"(pk|sk|hash|partition|key)(_?key)?|gsi.*", re.IGNORECASE)
_SURE_POISON = ["bad-json", "empty-object", "array", "null"]
"""Whatever the fields may be, which are a guess here."""
_MARKS = ("QUESTION", "REFUSED", "NOTE")


@dataclass(frozen=True, slots=True)
class Remark:
    """A line that a person should read."""

    line_no: int
    mark: str  # QUESTION, REFUSED or NOTE
    text: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the file is about, beyond what was found."""

    source: str  # the file that had it
    code: str  # relative to the new file
    handler: str
    from_template: bool
    questions: Sequence[str] = field(default=())
    """About the code and the handler."""
    layers: Sequence[str] = ()  # folders, relative to the new file
    sample: OrderSample | None = None
    sample_source: str = ""  # the file that has it


def orders_table(function: FoundFunction) -> FoundTable | None:
    """The table that is taken for that of the orders."""
    return next(iter(_tables_of(function)), None)


def settings_text(function: FoundFunction, beginning: Beginning) -> str:
    """The whole file."""
    page = _Page()
    page.comment(
        f"Settings of loadtest for {function.name}, from {beginning.source}. README.md of "
        "onceproof has them all, loadtest doctor looks them over."
    )
    _Writer(function, beginning, page).write()
    return "\n".join(page.lines) + "\n"


def remarks_in(text: str) -> Iterator[Remark]:
    """The questions of a file, and what else its author should read."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = re.match(r"# (\w+): ", line)
        if match is None or match[1] not in _MARKS:
            continue
        words = [line[match.end() :]]
        for more in lines[number + 1 :]:
            if not more.startswith("#   "):
                break
            words.append(more[4:])
        yield Remark(number + 1, match[1], " ".join(words))


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def table(self, header: str, note: str = "") -> None:
        if not header.startswith("[handler."):
            self.lines.append("")
        self.lines.append(_noted(header, note))

    def comment(self, text: str) -> None:
        self.lines += textwrap.wrap(
            _one_line(text), _WIDTH, initial_indent="# ", subsequent_indent="# "
        )

    def remark(self, mark: str, text: str) -> None:
        self.lines += textwrap.wrap(
            _one_line(text), _WIDTH, initial_indent=f"# {mark}: ", subsequent_indent="#   "
        )

    def question(self, text: str) -> None:
        self.remark("QUESTION", text)

    def setting(self, name: str, value: str | int | bool, note: str = "") -> None:
        self.lines.append(_noted(f"{name} = {_toml(value)}", note))

    def off(self, name: str, value: str | int | bool, note: str = "") -> None:
        """A setting to be switched on by taking its ``#`` away."""
        self.lines.append(_noted(f"# {name} = {_toml(value)}", note))


class _Writer:
    def __init__(self, function: FoundFunction, beginning: Beginning, page: _Page) -> None:
        self._function = function
        self._beginning = beginning
        self._page = page
        self._mapping = function.mappings[0] if function.mappings else None
        self._tables = _tables_of(function)
        # Everything else that the environment names, first things first.
        self._outlets: list[FoundTopic | FoundQueue] = []

    def write(self) -> None:
        self._handler()
        self._queue()
        for table in self._tables:
            self._table(table)
        if not self._tables:
            self._no_table()
        for outlet in self._outlets:
            self._effect(outlet)
        self._order()
        self._result()
        self._load()

    # [handler]

    def _handler(self) -> None:
        page, function = self._page, self._function
        page.table("[handler]")
        for question in self._beginning.questions:
            page.question(question)
        page.setting("code", self._beginning.code, "relative to this file")
        page.setting("handler", self._beginning.handler)
        if self._beginning.layers:
            page.lines.append(f"layers = {json.dumps(self._beginning.layers)}")
        match function.timeout_s:
            case None if not self._beginning.from_template:
                page.off("timeout", _TIMEOUT_S, "seconds; a handler that passes it is killed")
            case None:
                page.setting("timeout", _TIMEOUT_S, "seconds; Lambda's default")
            case Unknown() as unknown:
                page.question(f"What is the function's timeout? {_because(unknown)}")
                page.off("timeout", _TIMEOUT_S, "seconds; Lambda's default")
            case int(timeout_s):
                if not 1 <= timeout_s <= _LONGEST_TIMEOUT_S:
                    page.remark(
                        "REFUSED", f"Lambda takes a timeout of 1 to {_LONGEST_TIMEOUT_S} s."
                    )
                page.setting("timeout", timeout_s, "seconds; a handler that passes it is killed")
        page.table("[handler.environment]")
        for variable, value in function.environment.items():
            self._variable(variable, value)
        if not function.environment:
            page.question(
                "How does the handler learn the name of its table? A run makes tables of its "
                "own, so it must come from the environment."
            )
            page.off("TABLE_NAME", f"{{table:{self._first_table()}}}")

    def _variable(self, variable: str, value: Value) -> None:
        page = self._page
        problem = variable_problem(variable)
        if problem is not None:
            page.comment(f"{variable} is left out: it {problem}.")
            return
        # A table of another template, or of a parameter without a value, is told by its name.
        assumed = _assumed_table(variable, value)
        if assumed is not None:
            (unknown,) = value
            assert isinstance(unknown, Unknown)
            page.question(
                f"Is {variable} the name of a table? It sounds like one, and no more is known: "
                f"{unknown.why}."
            )
            page.setting(variable, f"{{table:{assumed.name}}}")
            return
        texts: list[str] = []
        for piece in value:
            match piece:
                case str():
                    texts.append(escaped(piece))
                case Unknown():
                    page.question(f"What is {variable}? {_because(piece)}")
                    page.off(variable, _likely(variable))
                    return
                case Named():
                    placeholder = self._placeholder(piece)
                    if placeholder is None:
                        page.question(
                            f"What is {variable}? It is {_described(piece)}, which a run does not "
                            "have."
                        )
                        page.off(variable, "")
                        return
                    texts.append(placeholder)
        outlets = [piece for piece in value if isinstance(piece, Named) and self._is_outlet(piece)]
        if outlets:
            what = " and ".join(f'"{piece.of.name}"' for piece in outlets)
            page.question(
                f"Do messages to {what} count as effects, once for each order? Then take the # "
                f"away here and before its [[effect]]; until then {variable} is not set."
            )
            page.off(variable, "".join(texts))
            self._outlets += [
                piece.of
                for piece in outlets
                if isinstance(piece.of, FoundTopic | FoundQueue) and piece.of not in self._outlets
            ]
        else:
            page.setting(variable, "".join(texts))

    def _placeholder(self, named: Named) -> str | None:
        ending = {"name": "", "url": "_url", "arn": "_arn"}.get(named.part)
        match named.of:
            case FoundTable(name=name) if named.part == "name":
                return f"{{table:{name}}}"
            case FoundQueue(name=name) if ending is not None:
                queue = self._mapping.queue if self._mapping else None
                if queue is not None and name == queue.name:
                    return f"{{queue{ending}}}"
                if queue is not None and name == queue.dead_letter:
                    return f"{{dlq{ending}}}"
                return f"{{queue:{name}{ending}}}"
            case FoundTopic(name=name) if ending is not None and named.part != "url":
                return f"{{topic:{name}{ending}}}"
        return None

    def _is_outlet(self, named: Named) -> bool:
        placeholder = self._placeholder(named) or ""
        return placeholder.startswith(("{topic:", "{queue:"))

    # [queue]

    def _queue(self) -> None:
        page, mapping = self._page, self._mapping
        if mapping is None or not self._beginning.from_template:
            self._usual_queue(mapping)
            return
        queue = mapping.queue
        page.table("[queue]", _one_line(queue.name))
        if len(self._function.mappings) > 1:
            others = ", ".join(other.queue.name for other in self._function.mappings[1:])
            page.question(f"The function is behind other queues too: {others}. Is this the one?")
        if mapping.filtered:
            page.remark(
                "NOTE", "The template filters messages (FilterCriteria); a run delivers them all."
            )
        self._batches(mapping)
        if queue.declared:
            self._redelivery(queue)
        else:
            page.question(
                f"What are visibility timeout and maxReceiveCount of the queue {queue.name}? No "
                "template here has it."
            )
            page.off("visibility_timeout", _VISIBILITY_TIMEOUT_S, "seconds; SQS's default")
            page.off("max_receive_count", 3)
        if queue.fifo:
            page.setting("fifo", True, "one message group an order")
            page.setting(
                "deduplication",
                "content" if queue.content_deduplication else "stamp",
                'or "stamp": an id a message' if queue.content_deduplication else "an id a message",
            )
        page.off("scaling", "aws", "five batches at once, 300 more a minute")

    def _usual_queue(self, mapping: FoundMapping | None) -> None:
        """Without a template: loadtest's defaults."""
        page = self._page
        page.table("[queue]")
        page.question(
            "What are the settings of the queue and its event source mapping? Those below are "
            "to start with."
        )
        page.setting("batch_size", 1, "AWS's default is 10")
        reports = mapping is not None and mapping.report_batch_item_failures
        note = "the code has batchItemFailures" if reports else ""
        page.setting("report_batch_item_failures", reports, note)
        page.off("visibility_timeout", 4, "seconds; not below the handler's timeout")
        page.off("max_receive_count", 3)
        page.off("fifo", False)

    def _batches(self, mapping: FoundMapping) -> None:
        page = self._page
        size = self._number("batch_size", "batch size", mapping.batch_size, _BATCH_SIZE, "")
        window_s = mapping.batching_window_s
        if window_s is not None:
            window_s = self._number(
                "batching_window", "batching window", window_s, 0, "seconds to wait for a batch"
            )
        largest = 10 if mapping.queue.fifo or not window_s else _LARGEST_BATCH
        if not 1 <= size <= largest:
            page.remark(
                "REFUSED",
                f"AWS takes a batch size of 1 to {largest} "
                + (
                    "from a FIFO queue."
                    if mapping.queue.fifo
                    else "here, and of more than 10 with a batching window alone."
                ),
            )
        if window_s and (mapping.queue.fifo or window_s > _LONGEST_WINDOW_S):
            page.remark(
                "REFUSED",
                f"AWS has no batching window of {window_s} s"
                + (
                    " for FIFO queues." if mapping.queue.fifo else f": {_LONGEST_WINDOW_S} at most."
                ),
            )
        if not mapping.report_batch_item_failures and size > 1:
            page.remark(
                "NOTE",
                "Without ReportBatchItemFailures one message that fails brings back all of its "
                "batch, and good ones may end in the dead-letter queue with it.",
            )
        page.setting("report_batch_item_failures", mapping.report_batch_item_failures)

    def _redelivery(self, queue: FoundQueue) -> None:
        page = self._page
        timeout_s = self._function.timeout_s
        timeout_s = timeout_s if isinstance(timeout_s, int) else _TIMEOUT_S
        visibility_s = self._number(
            "visibility_timeout",
            "visibility timeout",
            queue.visibility_timeout_s,
            _VISIBILITY_TIMEOUT_S,
            "seconds",
        )
        if visibility_s < timeout_s:
            page.remark(
                "REFUSED",
                f"The visibility timeout of {visibility_s} s is below the function's timeout of "
                f"{timeout_s} s: AWS refuses the event source mapping. Best is "
                f"{6 * timeout_s} s or more.",
            )
        if queue.max_receive_count is None and queue.dead_letter is None:
            page.remark(
                "NOTE",
                "The template gives the queue no dead-letter queue: there a message that nobody "
                "can accept comes back until its retention is over. A run has one always.",
            )
        receives = self._number(
            "max_receive_count",
            "maxReceiveCount",
            queue.max_receive_count,
            3,
            "",
            default_of="loadtest",
        )
        wait_s = visibility_s * receives
        if wait_s >= _LONG_WAIT_S:
            page.remark(
                "NOTE",
                f"A message that fails is in the dead-letter queue after {wait_s} s "
                f"({receives} receives, {visibility_s} s each), and a run waits for it. For a "
                "quick one lower visibility_timeout, or set load.poison and load.conflicts to 0.",
            )

    def _number(
        self,
        name: str,
        words: str,
        number: Number,
        default: int,
        note: str,
        default_of: str = "AWS",
    ) -> int:
        """Writes the setting; returns what holds."""
        match number:
            case None:
                self._page.setting(name, default, f"{default_of}'s default: the template has none")
                return default
            case Unknown() as unknown:
                self._page.question(f"What is the {words}? {_because(unknown)}")
                self._page.setting(name, default, f"{default_of}'s default")
                return default
            case int():
                self._page.setting(name, number, note)
                return number

    # [[table]], [[effect]]

    def _first_table(self) -> str:
        return self._tables[0].name if self._tables else "orders"

    def _table(self, table: FoundTable) -> None:
        page, first = self._page, table is self._tables[0]
        page.table("[[table]]")
        if first and len(self._tables) > 1:
            page.question(
                f"Which table holds the orders? Taken for: {self._first_table()}. "
                'role = "guard" is one of idempotency records, "reference" one that must not '
                'change, and "other" is not judged.'
            )
        page.setting("name", table.name)
        if table.key is None:
            page.question(f'What is the key of {table.name}? Taken for: "id", a text.')
            page.setting("key", "id")
        else:
            page.setting("key", table.key)
        if table.key_type != "S":
            page.setting("key_type", table.key_type)
        if table.sort is not None:
            page.setting("sort", table.sort)
            if table.sort_type != "S":
                page.setting("sort_type", table.sort_type)
        if len(self._tables) > 1:
            guard = not first and _GUARD.search(table.name)
            page.setting("role", "orders" if first else "guard" if guard else "other")
        if first and (table.sort is not None or _GENERIC_KEY.fullmatch(table.key or "")):
            self._items(table)

    def _items(self, table: FoundTable) -> None:
        page = self._page
        keys = " and ".join(filter(None, (table.key, table.sort)))
        page.question(
            f"How does the handler make {keys} from the order's id? If it puts something around "
            "it, or the table holds other items too, say it as here, {id} being the order's id "
            f"and {ANYTHING} any text:"
        )
        page.lines.append("# [[table.items]]")
        page.off("role", "orders")
        if table.key_type == "S":
            page.off("key", "ORDER#{id}")
        if table.sort is not None and table.sort_type == "S":
            page.off("sort", ANYTHING)

    def _no_table(self) -> None:
        page = self._page
        page.table("[[table]]")
        page.question("Which table do orders go to, and what is its key? No table was found.")
        page.setting("name", "orders")
        page.setting("key", "id")

    def _effect(self, outlet: FoundTopic | FoundQueue) -> None:
        page = self._page
        call = "sns:Publish" if isinstance(outlet, FoundTopic) else "sqs:SendMessage"
        page.lines.append("")
        page.lines.append("# [[effect]]")
        page.off("call", call)
        page.off("resource", outlet.name)
        page.off("key", "id", "member of the request, at any depth, with the order's id")

    # [order], [result], [load]

    def _order(self) -> None:
        page = self._page
        table = self._tables[0] if self._tables else FoundTable("orders", "id")
        sample = self._beginning.sample or _made_up(table)
        page.table("[order]")
        if self._beginning.sample is not None:
            page.question(
                f"May the fields be as below? The body is that of {self._beginning.sample_source}; "
                f"{{{sample.key}}} is the place of the order's id, and what each other {{field}} "
                "may be is a guess."
            )
        else:
            page.question(
                f"What does a message look like? The body below is made up; {{{sample.key}}} is "
                "the place of the order's id, and each other {field} needs a generator."
            )
        page.question(
            "In which fields may a second message of the same order differ, so that it must be "
            f"refused? Taken for: {sample.conflict or 'none'}."
        )
        queue = self._mapping.queue if self._mapping else None
        if queue is not None and queue.envelope is not None:
            page.setting("envelope", queue.envelope, f"{_one_line(queue.sender)} puts it around")
        elif sample.envelope is not None:
            page.setting("envelope", sample.envelope, "so it is in the saved event")
        page.setting("key", sample.key, "body field with the order's id")
        page.lines.append(f"body = {_literal(sample.body)}")
        conflict = json.dumps([sample.conflict] if sample.conflict else [])
        page.lines.append(_noted(f"conflict = {conflict}", "an empty list: no such message"))
        page.comment(
            "What no handler can accept. One that is strict about its fields refuses these too:"
        )
        page.comment(
            '"missing-field", "extra-field", "wrong-type", "out-of-range" (of what is below).'
        )
        page.lines.append(f"poison = {json.dumps(_SURE_POISON)}")
        for number, (name, generator) in enumerate(sample.fields.items()):
            page.lines.append(f"[order.{name}]")
            note = (
                "" if number else "integer, decimal = [lo, hi, places], choice, text = [min, max]"
            )
            page.lines.append(_noted(generator, note))

    def _result(self) -> None:
        page = self._page
        page.lines.append("")
        page.comment("Fields of the object that the handler returns, if it tells copies apart:")
        page.lines.append("# [result]")
        page.off("processed", "processed")
        page.off("duplicate", "duplicate")

    def _load(self) -> None:
        page = self._page
        page.table("[load]")
        page.off("orders", 200, "different orders")
        page.off("copies", 5, "messages of each")
        highest = self._mapping.maximum_concurrency if self._mapping else None
        if isinstance(highest, int) and 1 <= highest < _USUAL_CONCURRENCY:
            page.setting("concurrency", highest, "the mapping's MaximumConcurrency")
        elif isinstance(highest, int):
            note = f"processes; the mapping allows {highest} at once"
            page.setting("concurrency", _USUAL_CONCURRENCY, note)
        elif isinstance(highest, Unknown):
            page.question(f"What is the mapping's MaximumConcurrency? {_because(highest)}")
            page.setting("concurrency", _USUAL_CONCURRENCY, "processes that run the handler")
        else:
            page.off("concurrency", _USUAL_CONCURRENCY, "processes that run the handler")


def _made_up(table: FoundTable) -> OrderSample:
    """An order of which nothing is known but its table's key."""
    key = table.key or "id"
    key = key if _FIELD.fullmatch(key) and not _GENERIC_KEY.fullmatch(key) else "id"
    other = "quantity" if key != "quantity" else "amount"
    id_text = f"{{{key}}}" if table.key_type == "N" else f'"{{{key}}}"'
    body = f'{{"{key}": {id_text}, "{other}": {{{other}}}}}'
    return OrderSample(key, body, {other: "integer = [1, 10]"}, other)


def _literal(text: str) -> str:
    """As TOML text without escapes where that is possible: easier to read and change."""
    return f"'{text}'" if "'" not in text and text.isprintable() else _toml(text)


def _tables_of(function: FoundFunction) -> list[FoundTable]:
    """The tables that the environment names, or all there are; that of the orders first."""
    named: list[FoundTable] = []
    for variable, value in function.environment.items():
        assumed = _assumed_table(variable, value)
        named += [assumed] if assumed else []
        named += [
            piece.of
            for piece in value
            if isinstance(piece, Named) and isinstance(piece.of, FoundTable)
        ]
    tables = list(dict.fromkeys(named)) or list(function.tables)
    unique = list({table.name: table for table in reversed(tables)}.values())[::-1]
    return sorted(
        unique,
        key=lambda table: (bool(_GUARD.search(table.name)), "order" not in table.name.lower()),
    )


def _assumed_table(variable: str, value: Value) -> FoundTable | None:
    """A table of which only a variable's name tells."""
    if len(value) != 1 or not isinstance(value[0], Unknown) or "TABLE" not in variable.upper():
        return None
    if variable_problem(variable) is not None:
        return None
    words = [
        word
        for word in variable.lower().split("_")
        if word not in ("table", "tablename", "name", "ddb", "dynamodb")
    ]
    return FoundTable("-".join(words) or "orders")


def _likely(variable: str) -> str:
    """What an unknown variable may stand for, by its name; to be confirmed."""
    words = variable.upper().split("_")
    if "QUEUE" not in words and "DLQ" not in words:
        return ""
    name = "dlq" if {"DLQ", "DEAD"} & set(words) else "queue"
    ending = "_url" if "URL" in words else "_arn" if "ARN" in words else ""
    return f"{{{name}{ending}}}"


def _because(unknown: Unknown) -> str:
    return f"{unknown.why[:1].upper()}{unknown.why[1:]}."


def _described(named: Named) -> str:
    match named.of:
        case FoundTable(name=name):
            what = f"the table {name}"
        case FoundQueue(name=name):
            what = f"the queue {name}"
        case FoundTopic(name=name):
            what = f"the topic {name}"
        case other:
            what = f"{other.name} ({other.type})"
    return what if named.part == "Ref" else f"the {named.part} of {what}"


def _noted(text: str, note: str) -> str:
    return f"{text:<{_NOTE_COLUMN - 1}} # {note}" if note else text


def _one_line(text: str) -> str:
    """Without what a TOML comment must not hold, nor a terminal take for an order."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def _toml(value: str | int | bool) -> str:
    """JSON's texts and numbers are TOML's too, but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
