"""``loadtest deploy`` and ``loadtest clean`` as a user meets them: shown, asked, done, told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.errors import UsageError
from analysis.text import count
from consumer.clock import Clock
from loadtest.aws.account import Account, Identity
from loadtest.aws.clean import Tagged, find_orphans, remove_all, remove_stack, stack_parts
from loadtest.aws.cost import PRICE_REGION, mapping_polls, usd_text
from loadtest.aws.deploy import Deployment, There, present
from loadtest.aws.resources import TAG, Kind
from loadtest.aws.stack import (
    LOG_RETENTION_DAYS,
    MAX_RECEIVE_COUNT,
    MEMORY_MB,
    RUNTIME,
    TIMEOUT_S,
    VISIBILITY_TIMEOUT_S,
    Names,
    check_name,
    read_record,
    record_path,
)

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Where:
    """The account that a command was pointed at; None takes the usual sources."""

    profile: str | None
    region: str | None
    endpoint_url: str | None

    def account(self) -> Account:
        return Account(profile=self.profile, region=self.region, endpoint_url=self.endpoint_url)


@dataclass(frozen=True, slots=True)
class Talk:
    """How a command speaks with who called it."""

    console: Console
    agreed: Callable[[str], bool]
    """Asks a question; whether the answer is yes."""

    def say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def hint(self, text: str) -> None:
        self.console.print(Text(text, "dim"), soft_wrap=True)

    def facts(self, lines: Sequence[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for name, value in lines:
            table.add_row(name, Text(value))
        self.console.print(table)
        self.console.print()


async def deploy(where: Where, *, stack: str, out: Path, clock: Clock, talk: Talk) -> None:
    """Make the sample stack, or say what is there of it.

    :raises OnceproofError: it could not be made, or a part of it is in the way.
    """
    check_name(stack)
    path = record_path(out, stack)
    async with where.account() as account:
        identity = account.identity
        names = Names(stack, identity.region)
        record = read_record(path)
        if record is not None:
            check_place(record.account_id, record.region, identity, path)
        there = await present(account, names)
        if there:
            _tell_what_is_there(there, identity, talk)
            check_whole(names, there)
            talk.say(f"stack {stack} is there already; nothing was made")
            return
        talk.facts(stack_plan(names, identity, path))
        if not talk.agreed("Make it?"):
            talk.say("nothing was made")
            return
        record = await Deployment(account, names, path, clock=clock, say=talk.hint).make()
    talk.say(f"stack {stack} is ready; its record is {path}")
    talk.hint(f"load it   loadtest run --target aws --function {names.function}")
    talk.hint(f"remove it loadtest clean --stack {stack}")


def check_place(account_id: str, region: str, identity: Identity, what: Path) -> None:
    """:raises UsageError: what is recorded there is of another account or region."""
    if (account_id, region) != (identity.account_id, identity.region):
        raise UsageError(
            f"{what} is of account {account_id}, region {region}, and the credentials are for "
            f"{identity}. Use that account (--profile, --region); a new stack can have another "
            "--name."
        )


def _tell_what_is_there(there: Sequence[There], identity: Identity, talk: Talk) -> None:
    talk.facts(
        [
            ("in", str(identity)),
            *(
                (kind, f"{name}  {state}".rstrip() + (f"  ({TAG} = {tag})" if tag else ""))
                for kind, name, state, tag in there
            ),
        ]
    )


def check_whole(names: Names, there: Sequence[There]) -> None:
    """:raises UsageError: what is there is no whole stack of ours."""
    stack = names.stack
    foreign = [f"{kind} {name}" for kind, name, _, tag in there if tag is None]
    if foreign:
        raise UsageError(
            f"{', '.join(foreign)} {'is' if len(foreign) == 1 else 'are'} there already and not "
            f"ours (no tag {TAG}). Choose another --name."
        )
    missing = {name for _, name in names.parts()} - {name for _, name, _, _ in there}
    whole = not missing and any(kind is Kind.MAPPING for kind, _, _, _ in there)
    if not whole or len({tag for _, _, _, tag in there}) > 1:
        raise UsageError(
            f"only a part of stack {stack} is there. Remove it with loadtest clean --stack {stack}"
            ", then deploy again."
        )


def stack_plan(names: Names, identity: Identity, path: Path) -> list[tuple[str, str]]:
    """What will be made, where, and what it costs, as it is shown before."""
    idle = mapping_polls(deliveries=0, deleted=0, body_bytes=0, lasting_s=_DAY_S)
    return [
        ("in", str(identity)),
        ("", f"as {identity.caller_arn}"),
        ("makes", f"log group {names.log_group}, kept {count(LOG_RETENTION_DAYS, 'day')}"),
        ("", f"queue {names.dead_letter_queue}"),
        (
            "",
            f"queue {names.queue}, visibility {VISIBILITY_TIMEOUT_S} s, {MAX_RECEIVE_COUNT} "
            "receives before the dead-letter queue",
        ),
        ("", f"table {names.orders}, on demand, with a stream"),
        ("", f"table {names.reference}, on demand, one item"),
        (
            "",
            f"role {names.role}: receive, delete and count on the queue, put into the orders "
            "table, write to the log group, and nothing else",
        ),
        (
            "",
            f"function {names.function}, {RUNTIME}, {MEMORY_MB} MB, timeout {TIMEOUT_S} s: the "
            "reference handler",
        ),
        ("", "event source mapping from the queue to the function, one message an invocation"),
        ("tag", f"{TAG} = {names.stack}-..., on every one of them"),
        ("record", str(path)),
        (
            "cost",
            f"idle about {usd_text(idle.usd)} a day, an estimate: at most {idle.sqs_requests:,} "
            f"polls of the queue, list price of {PRICE_REGION}",
        ),
        ("", "a run tells its own cost before it sends"),
    ]


async def clean_stack(where: Where, *, stack: str, out: Path, talk: Talk) -> None:
    """Remove a stack of this name; its record says where it is, and which deployment it was.

    :raises OnceproofError: something may be left, or the record is of another account.
    """
    check_name(stack)
    path = record_path(out, stack)
    record = read_record(path)
    if record is not None:
        where = Where(
            where.profile,
            where.region or record.region,
            where.endpoint_url or record.endpoint_url,
        )
    async with where.account() as account:
        identity = account.identity
        if record is not None:
            check_place(record.account_id, record.region, identity, path)
        parts, untagged = await stack_parts(account, Names(stack, identity.region))
        if record is not None:
            parts = [one for one in parts if one.stack_id == record.stack_id]
        else:
            for text in untagged:
                talk.hint(f"{text} is not ours (no tag {TAG}); left as it is")
        if parts and not _agreed_to_remove(parts, identity, talk):
            return
        if record is not None:
            await remove_stack(account, record, path, say=talk.hint)
        else:
            await remove_all(account, parts, say=talk.hint)
    if not parts:
        talk.say(f"nothing is there of stack {stack} in {identity}")
        return
    talk.say(f"removed and proven gone: {count(len(parts), 'part')} of stack {stack}")


async def clean_orphans(where: Where, *, out: Path, talk: Talk) -> None:
    """Remove everything that carries the tag and that no record stands for.

    :raises OnceproofError: something may be left.
    """
    async with where.account() as account:
        parts = await find_orphans(account, out, talk.hint)
        if not parts:
            talk.say(f"no orphans in {account.identity}")
            return
        talk.hint("Whoever deployed them: they are in use if somebody is at work with them now.")
        if not _agreed_to_remove(parts, account.identity, talk):
            return
        await remove_all(account, parts, say=talk.hint)
    talk.say(f"removed and proven gone: {count(len(parts), 'orphan')}")


def _agreed_to_remove(parts: Sequence[Tagged], identity: Identity, talk: Talk) -> bool:
    talk.facts(
        [
            ("in", str(identity)),
            *(("removes", f"{one}  ({TAG} = {one.stack_id})") for one in parts),
        ]
    )
    if talk.agreed("Remove them?"):
        return True
    talk.say("nothing was removed")
    return False
