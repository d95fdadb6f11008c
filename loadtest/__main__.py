"""The command line: one thin function a command, ``loadtest init | run | explore | ...``."""

from __future__ import annotations

import inspect
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from analysis.errors import OnceproofError, UsageError
from analysis.findings import VerdictWord
from analysis.query import ask, tables_of
from analysis.report import write_outputs
from analysis.verdict import judge, write_verdict
from consumer.clock import HostClock
from loadtest import __version__
from loadtest.aws.clean_run import clean_run
from loadtest.aws.commands import Talk, Where, clean_orphans, clean_stack
from loadtest.aws.commands import deploy as deploy_stack
from loadtest.aws.lab import walk_deployed
from loadtest.aws.run import Asked, run_deployed
from loadtest.check import check_run, comparison_json, update_baseline
from loadtest.config import FaultFlags, load_settings
from loadtest.doctor import Level, advice_json, examine, examine_queue, examine_run
from loadtest.event_loop import run_in_loop
from loadtest.explore.asked import Place, asked_for
from loadtest.explore.command import Stop, run_explore, run_replay
from loadtest.explore.outcome import Exploration
from loadtest.explore.saved import load_schedule
from loadtest.explore.telling import Telling, print_outcome
from loadtest.fault_rules import faults_json
from loadtest.for_tests import FLAG, end_with_caller, explore_answer, run_answer
from loadtest.init import check_place, init, print_written, write
from loadtest.lab import walk
from loadtest.matrix import MatrixProgress, print_matrix
from loadtest.mutants import chosen, run_matrix
from loadtest.run import plan_of
from loadtest.run import run as run_load
from loadtest.stage import check_endpoint
from loadtest.terminal import (
    Quiet,
    Reporter,
    Terminal,
    print_advice,
    print_answer,
    print_comparison,
    print_faults,
    print_tables,
    print_verdict,
)

app = typer.Typer(
    name="loadtest",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Load and race-condition tester for idempotent queue consumers "
    "(SQS, Lambda, DynamoDB).\n\n"
    "Exit codes: 0 PASS, 1 FAIL, 2 wrong use or configuration, 3 INCONCLUSIVE, "
    "4 the endpoint or the handler could not be used.\n\n"
    "Example: loadtest run --code src --handler app.handler",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onceproof {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


_CTRL_C = 130
"""The exit code that typer gives to a KeyboardInterrupt."""
_LOAD = "Load"
_HANDLER = "Handler"
_FAULTS = "Faults"
_DEPLOYED = "Deployed function"
_WORLD = "World"
_OUTPUT = "Output"
_AWS = "AWS"


class Target(StrEnum):
    LOCAL = "local"
    ENDPOINT = "endpoint"
    AWS = "aws"


# Options that several commands have.
_Code = Annotated[
    Path | None,
    typer.Option(help="Folder that Lambda would unpack.", rich_help_panel=_HANDLER),
]
_HandlerName = Annotated[
    str | None,
    typer.Option(help="module.function in it, as Lambda names it.", rich_help_panel=_HANDLER),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        help="Configuration file; otherwise loadtest.toml, or \\[tool.loadtest] of "
        "pyproject.toml, in this folder.",
    ),
]
_EndpointUrl = Annotated[
    str | None,
    typer.Option(help="AWS-compatible endpoint to use instead of the embedded one."),
]
_Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print the verdict only.", rich_help_panel=_OUTPUT),
]
_Profile = Annotated[
    str | None, typer.Option(help="Profile of the AWS configuration files.", rich_help_panel=_AWS)
]
_Region = Annotated[str | None, typer.Option(help="AWS region.", rich_help_panel=_AWS)]
_AwsEndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        help="Something that has AWS's APIs, to use instead of AWS.",
        rich_help_panel=_AWS,
    ),
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_ForTests = Annotated[bool, typer.Option(FLAG, hidden=True)]
_RunsFolder = Annotated[
    Path, typer.Option(help="Folder for the run's directory.", rich_help_panel=_OUTPUT)
]


@app.command("init")
def init_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the template or the handler is.")
    ] = Path(),
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="SAM or CloudFormation template, serverless.yml or a template of cdk.out; "
            "otherwise what the folder has, and without any its Python files.",
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The function, where several are behind queues."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The new file; FOLDER/loadtest.toml if not given, - for standard output.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a loadtest.toml for a handler, from its template or from the code alone.

    What could not be told is left in it as a QUESTION, and listed at the end. No code is run.

    Example: loadtest init --template template.yaml --function OrdersFunction
    """
    place = folder / "loadtest.toml" if out is None else out
    if place == Path("-"):
        written = init(folder, template, function, Path())
        sys.stdout.write(written.text)
        print_written(Console(stderr=True, highlight=False), written, None)
        return
    check_place(place, folder, force=force)
    written = init(folder, template, function, place.parent)
    write(place, written)
    print_written(Console(highlight=False), written, place)


@app.command()
def run(
    code: _Code = None,
    handler: _HandlerName = None,
    config: _Config = None,
    orders: Annotated[
        int | None, typer.Option(help="Different orders.", rich_help_panel=_LOAD)
    ] = None,
    copies: Annotated[
        int | None, typer.Option(help="Messages of each order.", rich_help_panel=_LOAD)
    ] = None,
    conflicts: Annotated[
        float | None,
        typer.Option(
            help="Share of the orders that also get a message with other details.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    poison: Annotated[
        float | None,
        typer.Option(
            help="Messages that no handler can accept, as a share of the orders.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Messages a second, or max.", rich_help_panel=_LOAD)
    ] = None,
    burst: Annotated[
        bool | None,
        typer.Option(
            "--burst/--no-burst",
            help="Send the copies of one order together, or interleaved with others.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Environments that run the handler.", rich_help_panel=_LOAD),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same plan.", rich_help_panel=_LOAD)
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=RATE]",
            help="Make this fault happen, at a share of its places from 0 to 1 (1 if not given): "
            "NAME\\[:OPTION]\\[:lasting]\\[=RATE]. May be given several times; rules of this name "
            "in the file give way. loadtest faults lists the names. In a "
            "deployed function: some of them, with --record.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    faults: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file whose \\[faults] stands in for the configuration's; or the directory "
            "of a run, to repeat exactly what fired there.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    target: Annotated[
        Target | None,
        typer.Option(
            help="Where it runs: local (embedded AWS; endpoint with --endpoint-url), or aws, a "
            "function that is deployed already (with --function).",
            show_default=False,
        ),
    ] = None,
    endpoint_url: _EndpointUrl = None,
    function: Annotated[
        str | None,
        typer.Option(help="Name of the deployed function.", rich_help_panel=_DEPLOYED),
    ] = None,
    queue_url: Annotated[
        str | None,
        typer.Option(help="Its queue, where its mappings name several.", rich_help_panel=_DEPLOYED),
    ] = None,
    profile: _Profile = None,
    region: _Region = None,
    enable_stream: Annotated[
        bool,
        typer.Option(
            "--enable-stream",
            help="Switch a stream of the orders table on for the run, to see its writes, and off "
            "again.",
            rich_help_panel=_DEPLOYED,
        ),
    ] = False,
    keep_items: Annotated[
        bool,
        typer.Option(
            "--keep-items",
            help="Leave the run's own items in the tables.",
            rich_help_panel=_DEPLOYED,
        ),
    ] = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Have the function (Python) called through a recorder for the run, to see its "
            "AWS calls and results, and to make faults happen in it (--fault): a layer is added, "
            "its handler setting is changed, and both are put back.",
            rich_help_panel=_DEPLOYED,
        ),
    ] = False,
    allow_backlog: Annotated[
        bool,
        typer.Option(
            "--allow-backlog",
            help="Send although the queue holds messages already.",
            rich_help_panel=_DEPLOYED,
        ),
    ] = False,
    yes: _Yes = False,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Afterwards put the same load on a handler with a known race, and PASS only if "
            "that one was caught.",
        ),
    ] = False,
    out: _RunsFolder = Path("runs"),
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print verdict.json and nothing else.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    quiet: _Quiet = False,
    for_tests: _ForTests = False,
) -> None:
    """Flood the queue with copies, run the handler, judge what happened, write a report.

    Without arguments: the reference handler on an embedded AWS.

    Example: loadtest run --code src --handler app.handler --orders 500 --copies 4

    With faults: loadtest run --fault lost-reply=0.02 --fault throttle:lasting=0.01

    Deployed: loadtest run --target aws --function orders-consumer --region eu-west-1
    """
    asked = Asked(
        function or "",
        Where(profile, region, endpoint_url),
        queue_url,
        enable_stream=enable_stream,
        keep_items=keep_items,
        allow_backlog=allow_backlog,
        record=record,
    )
    _check_target(target, asked, yes=yes, local=control or code is not None or handler is not None)
    flags: dict[str, Any] = {
        "handler.code": code,
        "handler.handler": handler,
        "load.orders": orders,
        "load.copies": copies,
        "load.conflicts": conflicts,
        "load.poison": poison,
        "load.rate": rate,
        "load.burst": burst,
        "load.concurrency": concurrency,
        "load.seed": seed,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_settings(config, given, Path.cwd(), FaultFlags(tuple(fault or ()), faults))
    console = Console(stderr=json, highlight=False)
    if for_tests:
        end_with_caller()
    reporter: Reporter = Quiet() if quiet or for_tests else Terminal(console)
    if target is Target.AWS:
        run_dir, verdict = run_deployed(
            settings,
            asked,
            out=out,
            command=_command(),
            clock=HostClock(),
            reporter=reporter,
            agreed=_agreed(yes),
        )
    else:
        run_dir, verdict = run_load(
            settings,
            endpoint_url=endpoint_url,
            out=out,
            command=_command(),
            clock=HostClock(),
            reporter=reporter,
            control=control,
        )
    if json:
        sys.stdout.write((run_dir / "verdict.json").read_text())
    elif for_tests:
        sys.stdout.write(run_answer(run_dir, verdict, _command()))
    elif quiet:
        console.print(Text(" ".join((verdict.verdict, *verdict.reasons))), soft_wrap=True)
    else:
        print_verdict(console, verdict, run_dir, run_dir / "report.html")
    raise typer.Exit(verdict.verdict.exit_code)


def _command() -> str:
    """The command line that was given, quoted for a shell."""
    return shlex.join(["loadtest", *(argument for argument in sys.argv[1:] if argument != FLAG)])


def _check_target(target: Target | None, asked: Asked, *, yes: bool, local: bool) -> None:
    """:raises UsageError: the options do not fit together."""
    if target is Target.AWS:
        if not asked.function:
            raise UsageError("--target aws needs --function, the name of the deployed function.")
        if local:
            raise UsageError(
                "--code, --handler and --control are of runs with this tool's own environments; "
                "with --target aws the function runs where it is deployed."
            )
        return
    endpoint_url = asked.where.endpoint_url
    if yes or asked != Asked("", Where(None, None, endpoint_url)):
        raise UsageError(
            "--function, --queue-url, --profile, --region, --enable-stream, --keep-items, "
            "--record, --allow-backlog and --yes are of --target aws: name that target as well."
        )
    if target is Target.ENDPOINT and endpoint_url is None:
        raise UsageError("--target endpoint needs --endpoint-url.")
    if target is Target.LOCAL and endpoint_url is not None:
        raise UsageError("--target local is the embedded AWS: leave --endpoint-url out.")
    if endpoint_url is not None:
        check_endpoint(endpoint_url)


@app.command()
def explore(
    code: _Code = None,
    handler: _HandlerName = None,
    config: _Config = None,
    copies: Annotated[
        int | None,
        typer.Option(
            help="Messages, 1 to 4. With --copies or --faults this one world is explored (2 "
            "copies, no fault where one is not given) instead of the ladder.",
            rich_help_panel=_WORLD,
        ),
    ] = None,
    faults: Annotated[
        int | None,
        typer.Option(help="Faults at most, 0 to 3.", rich_help_panel=_WORLD),
    ] = None,
    orders: Annotated[
        int, typer.Option(help="Orders that they are of, 1 or 2.", rich_help_panel=_WORLD)
    ] = 1,
    conflict: Annotated[
        bool,
        typer.Option(
            "--conflict",
            help="The second message has the first one's id and other details.",
            rich_help_panel=_WORLD,
        ),
    ] = False,
    poison: Annotated[
        bool,
        typer.Option(
            "--poison",
            help="One message is one that no handler can accept.",
            rich_help_panel=_WORLD,
        ),
    ] = False,
    batch: Annotated[
        int,
        typer.Option(
            help="Messages that may come in one event, 1 to 4: any of those that wait, up to so "
            "many, in any order.",
            rich_help_panel=_WORLD,
        ),
    ] = 1,
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,KIND",
            help="Faults that may be chosen: crash, timeout, lost-reply, throttle, "
            "transaction-conflict, stale-read, redeliver (all if not given).",
            rich_help_panel=_WORLD,
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time for it, after start-up: 60s, 5m. A world that half of what is left is not "
            "enough for is sampled in the other half.",
        ),
    ] = "60s",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same messages.")] = 1,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Carry out a saved schedule again, twice, and judge it."),
    ] = None,
    endpoint_url: _EndpointUrl = None,
    out: _RunsFolder = Path("runs"),
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print explore.json and nothing else.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    quiet: _Quiet = False,
    for_tests: _ForTests = False,
) -> None:
    """Try every order of the AWS calls of a few copies, and every fault within a bound.

    Without numbers it climbs from one copy without a fault to four copies with one, and stops
    at the first failure. Exit codes: 0 all covered and nothing failed, 1 a schedule failed, 3
    the budget was spent first, and a sample is no proof, or nothing can be said.

    Example: loadtest explore --code src --handler app.handler --copies 3 --faults 1

    Again: loadtest explore --replay runs/20260101T120000Z-a1b2c3/schedule.txt
    """
    if endpoint_url is not None:
        check_endpoint(endpoint_url)
    console = Console(stderr=json, highlight=False)
    if for_tests:
        end_with_caller()
    telling = Telling(None if quiet or for_tests else console)
    place = Place(endpoint_url, out, config, _command(), Path.cwd(), HostClock())
    if replay is not None:
        saved = load_schedule(replay, code=code, handler=handler, config=config, cwd=place.cwd)
        for text in saved.changed:
            telling.warn(f"{text}; whether it still fits is seen when it is carried out.")
        _end_explore(run_replay(saved, place, telling, Stop()), console, json=json, quiet=quiet)
    asked = asked_for(
        copies=copies,
        faults=faults,
        orders=orders,
        conflict=conflict,
        poison=poison,
        batch=batch,
        kinds=None if kinds is None else kinds.split(","),
        budget=budget,
        seed=seed,
    )
    flags = {"handler.code": code, "handler.handler": handler}
    settings = load_settings(config, flags, Path.cwd())
    outcome = run_explore(settings, asked, place, telling, Stop())
    if for_tests:
        sys.stdout.write(explore_answer(outcome, _command()))
        raise typer.Exit(outcome.verdict.exit_code)
    _end_explore(outcome, console, json=json, quiet=quiet)


def _end_explore(outcome: Exploration, console: Console, *, json: bool, quiet: bool) -> NoReturn:
    if json:
        sys.stdout.write((outcome.run_dir / "explore.json").read_text())
    elif quiet:
        console.print(Text(" ".join((outcome.verdict, *outcome.reasons))), soft_wrap=True)
    else:
        print_outcome(console, outcome)
    raise typer.Exit(outcome.verdict.exit_code)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print verdict.json and nothing else.")
    ] = False,
) -> None:
    """Judge a run again from its evidence alone, and write its report again.

    Works on an unfinished directory too: the verdict is then INCONCLUSIVE at best.

    Example: loadtest report runs/20260101T120000Z-a1b2c3
    """
    verdict = judge(run_dir)
    write_verdict(run_dir, verdict)
    write_outputs(run_dir, verdict)
    if json:
        sys.stdout.write((run_dir / "verdict.json").read_text())
    else:
        console = Console(highlight=False)
        print_verdict(console, verdict, run_dir, run_dir / "report.html")
    raise typer.Exit(verdict.verdict.exit_code)


@app.command()
def check(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|RUN",
            help="What its timing is compared with: a baseline file, or the directory of "
            "another run.",
        ),
    ] = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update-baseline",
            help="Write the baseline file from this run, if it passed, and compare nothing.",
        ),
    ] = False,
    config: _Config = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
    ] = False,
) -> None:
    """Judge a run and hold its timing against thresholds and a baseline, for CI.

    Thresholds stand in \\[thresholds] of the configuration, each METRIC = "<= NUMBER" or
    ">= NUMBER": seconds, or messages a second; with x behind the number, that many times the
    baseline. With ", n >= NUMBER" behind it, at least so many values are needed.

    Metrics: handler_p99, and so for end_to_end, write, send, send_lag and delivery, with p50,
    p90, p95, p99, p99_9 and max; drain_rate and send_rate. Parts of them: handler_processed,
    handler_duplicate, end_to_end_processed, end_to_end_duplicate, write_accepted,
    write_rejected. Without thresholds: handler_p95 and end_to_end_p95 at most 1.5x the
    baseline.

    Exit codes: 0 no finding and all within, 1 a finding or a figure that is worse, 2 wrong
    use, or a baseline of another load, 3 not enough data or an inconclusive run.

    Example: loadtest check runs/20260101T120000Z-a1b2c3 --baseline baseline.json
    """
    if update:
        comparison = update_baseline(run_dir, baseline)
    else:
        thresholds = load_settings(config, {}, Path.cwd()).thresholds
        comparison = check_run(run_dir, thresholds, baseline)
    if json:
        sys.stdout.write(comparison_json(comparison))
    else:
        console = Console(highlight=False)
        print_comparison(console, comparison)
        if update and comparison.verdict is VerdictWord.PASS:
            console.print(Text(f"baseline  {baseline}"), soft_wrap=True)
        elif update:
            console.print("The baseline is as it was: it is written from a run that passes.")
    raise typer.Exit(comparison.verdict.exit_code)


@app.command()
def sql(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="SELECT", help="One SELECT statement of DuckDB's SQL.", show_default=False
        ),
    ] = None,
) -> None:
    """Ask the evidence of a run a question of your own.

    Prints a table on a terminal and CSV into a file or a pipe. Without a statement: the
    tables and columns there are. Nothing can be changed.

    Example: loadtest sql runs/20260101T120000Z-a1b2c3 "select decision, count(*) from calls
    group by all"
    """
    console = Console(highlight=False)
    if statement is None:
        print_tables(console, tables_of(run_dir))
        return
    with ask(run_dir, statement) as answer:
        print_answer(console, answer)


@app.command()
def lab(
    out: Annotated[Path, typer.Option(help="Folder for the run's directory.")] = Path("runs"),
    target: Annotated[
        Target,
        typer.Option(
            help="local: here, with this tool's own environments. aws: through Lambda, on a sample "
            "stack that is made for it and removed again.",
        ),
    ] = Target.LOCAL,
    endpoint_url: _EndpointUrl = None,
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A sample stack that is there already.", rich_help_panel=_AWS
        ),
    ] = None,
    profile: _Profile = None,
    region: _Region = None,
    yes: _Yes = False,
) -> None:
    """Walk the smallest story with the reference handler, and print every step of it.

    One order alone, two copies of it, one other order: four deliveries, two accepted
    writes, two rejections that change nothing.

    Example: loadtest lab --out /tmp/lab

    In an account: loadtest lab --target aws --profile dev --region eu-west-1
    """
    console = Console(highlight=False)
    if target is Target.AWS:
        where = Where(profile, region, endpoint_url)
        held = run_in_loop(
            walk_deployed(where, stack=stack, out=out, clock=HostClock(), talk=_talk(yes))
        )
        raise typer.Exit(0 if held else 1)
    if target is Target.ENDPOINT and endpoint_url is None:
        raise UsageError("--target endpoint needs --endpoint-url.")
    if stack or profile or region or yes:
        raise UsageError(
            "--stack, --profile, --region and --yes are of --target aws: name that target as well."
        )
    if endpoint_url is not None:
        check_endpoint(endpoint_url)
    held = walk(endpoint_url=endpoint_url, out=out, clock=HostClock(), console=console)
    raise typer.Exit(0 if held else 1)


@app.command()
def deploy(
    name: Annotated[str, typer.Option(help="Name of the stack.")] = "sample",
    profile: _Profile = None,
    region: _Region = None,
    endpoint_url: _AwsEndpointUrl = None,
    out: Annotated[Path, typer.Option(help="Folder for the stack's record.")] = Path("runs"),
    yes: _Yes = False,
) -> None:
    """Make the sample stack in AWS: queue, tables, and the reference handler as a function.

    Shows account, region, what will be made and what it costs, and asks. What is made carries
    the tag "onceproof". If something fails, what was made is removed again. A stack that is
    there already is only shown.

    Example: loadtest deploy --profile dev --region eu-west-1

    For CI: loadtest deploy --name ci-42 --yes
    """
    where = Where(profile, region, endpoint_url)
    run_in_loop(deploy_stack(where, stack=name, out=out, clock=HostClock(), talk=_talk(yes)))


@app.command()
def clean(
    stack: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove the stack of this name.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="Remove what the run of this directory left at a deployed function.",
        ),
    ] = None,
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans",
            help="Remove everything in account and region that carries the tag onceproof and has "
            "no record in --out.",
        ),
    ] = False,
    profile: _Profile = None,
    region: _Region = None,
    endpoint_url: _AwsEndpointUrl = None,
    out: Annotated[Path, typer.Option(help="Folder with the stack's record.")] = Path("runs"),
    yes: _Yes = False,
) -> None:
    """Remove from AWS what deploy or a run put there, and prove that it is gone.

    Of stacks, only what carries the tag is removed; of a run, its own items and messages, and
    what it had changed is put back. It is shown first, and you are asked. Exit code 4: something
    may be left; it is named, and the command can be repeated.

    Example: loadtest clean --stack sample

    After a crash: loadtest clean --run runs/20260101T120000Z-a1b2c3

    Without any record: loadtest clean --orphans --region eu-west-1
    """
    if (stack is not None) + (run_dir is not None) + orphans != 1:
        raise UsageError("name what to remove: --stack NAME, --run DIR or --orphans.")
    where = Where(profile, region, endpoint_url)
    talk = _talk(yes)
    if stack is not None:
        run_in_loop(clean_stack(where, stack=stack, out=out, talk=talk))
    elif run_dir is not None:
        run_in_loop(clean_run(where, run_dir=run_dir, clock=HostClock(), talk=talk))
    else:
        run_in_loop(clean_orphans(where, out=out, talk=talk))


def _talk(yes: bool) -> Talk:
    return Talk(Console(highlight=False), _agreed(yes))


def _agreed(yes: bool) -> Callable[[str], bool]:
    """Asks the user a question, or answers it with yes."""

    def agreed(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked here: say --yes to go on without a question.")
        return typer.confirm(question, err=True)

    return agreed


@app.command()
def faults(
    json: Annotated[
        bool, typer.Option("--json", help="Print them as JSON and nothing else.")
    ] = False,
) -> None:
    """List the faults that a run can make happen: what each imitates, and where that is said.

    Example: loadtest faults --json

    Then: loadtest run --fault lost-reply:silent=0.02 --fault redrive
    """
    if json:
        sys.stdout.write(faults_json())
    else:
        print_faults(Console(highlight=False))


@app.command()
def doctor(
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="Directory of a run: also look for conditions that could not fail.",
            show_default=False,
        ),
    ] = None,
    config: _Config = None,
    endpoint_url: Annotated[
        str | None, typer.Option(help="AWS-compatible endpoint that has the queue.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(help="Name or URL of a queue there: also look at its attributes. Read only."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the advice as JSON and nothing else.")
    ] = False,
) -> None:
    """Look over the configuration for what leads astray although it is allowed.

    Exit codes: 0 nothing or hints, 1 a warning or something that AWS refuses, 2 a wrong
    configuration. loadtest run tells the warnings too, and goes on.

    Example: loadtest doctor --endpoint-url http://127.0.0.1:4566 --queue orders
    """
    if (endpoint_url is None) != (queue is None):
        raise UsageError("--endpoint-url and --queue go together: name both, or none.")
    settings = load_settings(config, {}, Path.cwd())
    advice = [*examine(settings, plan_of(settings))]
    if endpoint_url is not None and queue is not None:
        check_endpoint(endpoint_url)
        advice += examine_queue(endpoint_url, queue, settings)
    if run_dir is not None:
        advice += examine_run(run_dir)
    if json:
        sys.stdout.write(advice_json(advice))
    else:
        print_advice(Console(highlight=False), advice)
    raise typer.Exit(0 if all(one.level is Level.HINT for one in advice) else 1)


@app.command()
def mutants(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This bug; may be given several times.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same plans.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for the runs; only those that went wrong are kept.")
    ] = Path("runs"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the matrix as JSON and nothing else.")
    ] = False,
) -> None:
    """Run the planted bugs: each must be caught, and each correct twin left alone.

    Every bug is a handler with one mistake that was made in earnest somewhere, and gets a
    small flood. Exit code 1 when a bug is missed or a correct twin is blamed.

    Example: loadtest mutants --only read_then_write
    """
    bugs = chosen(only or ())
    progress = MatrixProgress(
        Console(stderr=json, highlight=False), sum(not bug.needs for bug in bugs)
    )
    try:
        matrix = run_in_loop(
            run_matrix(bugs, seed=seed, out=out, clock=HostClock(), progress=progress)
        )
    finally:
        progress.close()
    if json:
        sys.stdout.write(matrix.json())
    else:
        print_matrix(Console(highlight=False), matrix)
    raise typer.Exit(matrix.exit_code)


def _unwrap(commands: Sequence[typer.models.CommandInfo]) -> None:
    """Help from the docstrings, whose lines are as long as an editor wants them: a terminal has
    a width of its own."""
    for command in commands:
        paragraphs = inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


_unwrap(app.registered_commands)


def main() -> None:
    """Entry point: every expected error is one message and an exit code."""
    errors = Console(stderr=True, highlight=False)
    # What is asked to end cleans up as after Ctrl-C, whatever it is doing.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        app(prog_name="loadtest")
    except OnceproofError as error:
        errors.print(Text("error: ", "bold red") + Text(str(error)), soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            errors.print(Text(note), soft_wrap=True)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code != _CTRL_C:
            raise
        errors.print(Text("interrupted"), soft_wrap=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
