"""``python -m analysis RUN``: judge a run directory from its evidence alone."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.errors import OnceproofError
from analysis.findings import CheckStatus, Verdict
from analysis.proofs import check_text, fault_line
from analysis.verdict import judge, write_verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, write ``verdict.json`` beside the evidence, print; the answer is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, finished or not")
    parser.add_argument("--json", action="store_true", help="print verdict.json and nothing else")
    options = parser.parse_args(arguments)
    try:
        verdict = judge(options.run)
        path = write_verdict(options.run, verdict)
    except OnceproofError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(
        path.read_text(encoding="utf-8")
        if options.json
        else text_of(verdict, shlex.quote(str(options.run))),
        end="",
    )
    return verdict.verdict.exit_code


def text_of(verdict: Verdict, run: str) -> str:
    """The verdict as text: word, reasons, rules, faults, findings by kind and group, notes.

    :param run: the run's directory as a shell would take it
    """
    lines = [f"{verdict.verdict} {verdict.run_id}"]
    lines += [f"  {reason}" for reason in verdict.reasons]
    lines.append("rules")
    lines += [
        f"  {'✓' if rule.passed else '✗'} {rule.name}: {rule.actual} (required: {rule.required})"
        for rule in verdict.rules
    ]
    if verdict.exposure.faults:
        lines.append("faults")
    lines += [f"  {fault_line(rule)}" for rule in verdict.exposure.faults]
    found = [check for check in verdict.checks if check.status is CheckStatus.FOUND]
    if found:
        lines.append("findings")
    for check in found:
        lines.append(f"  {check.kind} {check.count:,}")
        lines += [f"  {line}".rstrip() for line in check_text(check, run)]
    if verdict.notes:
        lines.append("notes")
        lines += [f"  {note}" for note in verdict.notes]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
