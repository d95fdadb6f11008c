"""The page, the plots, the JUnit file and the summary of a run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import msgspec
import pytest

from analysis.checks import sql_of
from analysis.errors import EvidenceError
from analysis.exposure import most_contended
from analysis.findings import (
    MAX_GROUPS,
    MAX_SHOWN,
    CheckReport,
    CheckStatus,
    Counts,
    Exposure,
    Finding,
    FindingGroup,
    FindingKind,
    Rule,
    Verdict,
    VerdictWord,
)
from analysis.junit import write_junit
from analysis.plots import PALETTE, render_plots
from analysis.proofs import prove_examples
from analysis.report import Outputs, render_report, write_outputs
from analysis.schema import RunStatus
from analysis.store import open_evidence
from analysis.summary import write_summary
from analysis.timing import measure
from analysis.verdict import judge
from tests.sample_run import HOSTILE, Sample, write_run

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text, and whether tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def verdict_of(run_dir: Path, *checks: CheckReport, word: VerdictWord | None = None) -> Verdict:
    """A verdict with these answers; every other check is clean."""
    given = {check.kind: check for check in checks}
    found = sum(check.count for check in checks)
    word = word or (VerdictWord.FAIL if found else VerdictWord.PASS)
    with open_evidence(run_dir) as evidence:
        timing = measure(evidence)
    return Verdict(
        run_id="20260101T000000Z-0001",
        verdict=word,
        reasons=() if word is VerdictWord.PASS else (f"{found} findings.",),
        counts=Counts(*range(1001, 1022)),
        exposure=Exposure(321, 40, 50, 6, "a"),
        rules=(
            Rule("no findings", not found, "0", str(found)),
            Rule("exposure", True, "5 contended orders", "40 contended orders"),
        ),
        checks=tuple(given.get(kind, clean(kind)) for kind in FindingKind),
        timing=timing,
        notes=("A note about <this> run.",),
    )


def clean(kind: FindingKind) -> CheckReport:
    return CheckReport(kind, f"Is there {kind.value}?", "None.", CheckStatus.CLEAN, 0)


def found(kind: FindingKind, findings: list[Finding], count: int | None = None) -> CheckReport:
    return replace(
        clean(kind),
        status=CheckStatus.FOUND,
        count=len(findings) if count is None else count,
        findings=tuple(findings),
    )


def proved(run_dir: Path, report: CheckReport, groups: int) -> CheckReport:
    """The same answer in groups, with the first findings as their examples, proved."""
    examples = report.findings[:groups]
    share = report.count // len(examples)
    report = replace(
        report,
        groups=tuple(FindingGroup("It did this", share, share, finding) for finding in examples),
        patterns=len(examples) + 2,
    )
    with open_evidence(run_dir) as evidence:
        (answer,), notes = prove_examples(evidence, [report])
    assert notes == ()
    return answer


def overwrites(run_dir: Path) -> list[Finding]:
    """The planted overwrites, as findings."""
    with open_evidence(run_dir) as evidence:
        rows = evidence.rows(
            "SELECT m.order_key, list(c.call_id ORDER BY c.sent_at) AS calls,"
            " list(c.invocation_id ORDER BY c.sent_at) AS invocations"
            " FROM call_items t JOIN calls c USING (call_id)"
            " JOIN deliveries d USING (invocation_id) JOIN messages m USING (message_no)"
            " WHERE t.action = 'put' AND t.decision = 'accepted'"
            " GROUP BY m.order_key HAVING count(*) > 1 ORDER BY m.order_key"
        )
    return [
        Finding(
            FindingKind.OVERWRITE,
            row["order_key"],
            f"The write of order {row['order_key']} was written over.",
            invocation_ids=tuple(row["invocations"]),
            call_ids=tuple(row["calls"]),
        )
        for row in rows
    ]


def outputs_of(run_dir: Path, verdict: Verdict) -> tuple[Outputs, Page, str]:
    outputs = write_outputs(run_dir, verdict, now=lambda: NOON)
    text = outputs.report.read_text(encoding="utf-8")
    return outputs, Page(text), text


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page, str]:
    """A run with hostile keys and bodies, and planted overwrites."""
    run_dir = write_run(
        tmp_path_factory.mktemp("failed"), Sample(orders=60, overwrites=8, hostile=True)
    )
    answer = proved(run_dir, found(FindingKind.OVERWRITE, overwrites(run_dir)), 3)
    _, page, text = outputs_of(run_dir, verdict_of(run_dir, answer))
    return run_dir, page, text


# --- the page ---------------------------------------------------------------------------


def test_the_page_is_well_formed_and_stands_alone(failed: tuple[Path, Page, str]) -> None:
    _, page, text = failed
    assert page.open == []
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    references = page.values("href") + page.values("src") + page.values("xlink:href")
    assert references
    assert all(reference.startswith("#") for reference in references)
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{name}" for name in page.values("id")}
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "@import" not in text


def test_links_lead_somewhere_and_ids_are_unique(failed: tuple[Path, Page, str]) -> None:
    _, page, _ = failed
    ids = Counter(page.values("id"))
    assert [name for name, times in ids.items() if times > 1] == []
    targets = [*page.values("href"), *page.values("xlink:href")]
    targets += [f"#{value}" for value in page.values("aria-labelledby")]
    assert [target for target in targets if target[1:] not in ids] == []


def test_hostile_text_is_shown_and_never_obeyed(failed: tuple[Path, Page, str]) -> None:
    _, page, _ = failed
    assert HOSTILE in page.text
    assert [name for _, name, _ in page.attributes if name.startswith("on")] == []


def test_colour_is_never_the_only_sign(failed: tuple[Path, Page, str]) -> None:
    _, page, text = failed
    drawings = [tag for tag, name, value in page.attributes if (name, value) == ("role", "img")]
    assert len(drawings) == len([label for label in page.values("aria-label") if label]) - 2
    assert "prefers-color-scheme: dark" in text
    headings = re.findall(r"<(h[1-6])", text)
    assert headings[0] == "h1"
    assert page.tags["h1"] == 1
    assert page.tags["th"] == text.count('scope="col"') + text.count('scope="row"')


def test_a_failed_run_tells_kind_count_ids_and_lanes(failed: tuple[Path, Page, str]) -> None:
    run_dir, page, text = failed
    findings = overwrites(run_dir)
    assert len(findings) > 3
    assert "FAIL" in page.text
    for finding in findings:
        assert finding.explanation in page.text
        assert f"call{'s' if len(finding.call_ids) > 1 else ''} {finding.call_ids[0]}" in page.text
    assert f"{len(findings)} findings of this kind, in words" in page.text
    assert page.text.count("same pattern: It did this") == 3
    assert "2 further patterns of this kind not drawn" in page.text
    named = sum(len(finding.call_ids) for finding in findings[:3])
    assert page.text.count("(in the finding)") == named
    assert 3 <= text.count('<circle class="ring" r="11"/>') <= named


def test_text_and_lanes_of_a_proof_use_the_same_letters_and_numbers(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=60, overwrites=8))
    answer = proved(run_dir, found(FindingKind.OVERWRITE, overwrites(run_dir)), 1)
    proof = answer.groups[0].example.proof
    assert proof is not None
    assert len(proof.actors) > 1
    _, page, text = outputs_of(run_dir, verdict_of(run_dir, answer))
    for actor in proof.actors:
        assert text.count(f'<b class="actor">{actor.letter}</b>') == 2  # in words and at its lane
        assert f"{actor.letter}invocation {actor.invocation_id} · environment" in page.text
    drawn = re.findall(r'<text class="letter(?: on)?" y="[^"]*">(\d+)</text>', text)
    assert sorted(map(int, drawn)) == list(range(1, len(proof.steps) + 1))
    for step in proof.steps:
        assert step.text in page.text
    assert f'loadtest sql RUN "{proof.query}"' in page.text


def test_every_check_shows_its_sql(failed: tuple[Path, Page, str]) -> None:
    _, page, _ = failed
    for kind in FindingKind:
        assert " ".join(sql_of(kind).split()) in page.text


def test_a_clean_run_shows_its_most_contended_orders(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=60, rate_per_s=400))
    outputs, page, text = outputs_of(run_dir, verdict_of(run_dir))
    with open_evidence(run_dir) as evidence:
        keys = most_contended(evidence, 3)
    assert len(keys) == 3
    assert all(f"<code>{key}</code>" in text for key in keys)
    assert "No finding: 1,011 accepted" in page.text
    assert [plot.name for plot in outputs.plots] == [
        "over-time", "queue-depth", "latency", "overlap", "send-lag",
    ]  # fmt: skip
    assert "<pre>loadtest run --orders 60 --seed 1</pre>" in text


def test_a_run_without_overlap_says_that_it_shows_nothing(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=10, concurrency=1))
    _, page, _ = outputs_of(run_dir, verdict_of(run_dir, word=VerdictWord.INCONCLUSIVE))
    assert "INCONCLUSIVE" in page.text
    assert "this run has shown nothing about races" in page.text


def test_a_run_that_sent_nothing_still_has_a_page(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=0, poison=0, status=RunStatus.RUNNING))
    for file in (run_dir / "evidence").iterdir():
        file.write_bytes(b"")
    outputs, page, _ = outputs_of(run_dir, verdict_of(run_dir, word=VerdictWord.INCONCLUSIVE))
    assert outputs.plots == ()
    assert "Nothing was sent" in page.text


def test_rendering_again_changes_nothing_but_the_time(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=40, overwrites=2))
    verdict = verdict_of(run_dir, found(FindingKind.OVERWRITE, overwrites(run_dir)))
    (run_dir / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    outputs, _, first = outputs_of(run_dir, verdict)
    files = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert render_report(run_dir, now=lambda: NOON.replace(hour=13)) == outputs.report
    second = outputs.report.read_text(encoding="utf-8")
    assert second != first
    outputs.report.write_text(second.replace("13:00:00 UTC", "12:00:00 UTC"), encoding="utf-8")
    assert {path: path.read_bytes() for path in files} == files


def test_a_run_that_was_never_judged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="verdict"):
        render_report(write_run(tmp_path, Sample(orders=2)))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=2))
    (run_dir / "plots").write_text("a file where the directory belongs")
    with pytest.raises(EvidenceError, match=r"plots: cannot be written .* loadtest report"):
        write_outputs(run_dir, verdict_of(run_dir))


def test_the_worst_run_stays_small(tmp_path: Path) -> None:
    run_dir = write_run(
        tmp_path, Sample(orders=60, copies=40, conflicts=1, overwrites=60, concurrency=32)
    )
    with open_evidence(run_dir) as evidence:
        keys = [
            row["order_key"] for row in evidence.rows("SELECT DISTINCT order_key FROM messages")
        ]
    ids = tuple(range(1, 2000))
    answers = [
        proved(
            run_dir,
            found(
                kind,
                [
                    Finding(
                        kind, keys[(number + place) % len(keys)], "<&\x00é" * 5000, ids, ids, ids
                    )
                    for number in range(MAX_SHOWN)
                ],
                count=2_000_000,
            ),
            MAX_GROUPS,
        )
        for place, kind in enumerate(FindingKind)
    ]
    verdict = replace(
        verdict_of(run_dir, *answers),
        reasons=("why " * 5000,) * 30,
        rules=tuple(
            Rule(f"rule {number}" * 99, False, "x" * 9999, "y" * 9999) for number in range(40)
        ),
    )
    outputs, page, _ = outputs_of(run_dir, verdict)
    assert outputs.report.stat().st_size < 5_000_000
    assert page.text.count("1,999,900 more, counted and not listed") == len(FindingKind)
    summary = outputs.summary.read_text(encoding="utf-8")
    assert summary.count("\n") <= 120
    assert len(summary) < 60_000  # GitHub refuses comments above 65,536 characters
    ET.parse(outputs.junit)


def test_a_page_that_would_be_too_large_shows_fewer_findings_and_the_same_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = write_run(tmp_path, Sample(orders=60, overwrites=8))
    findings = overwrites(run_dir) * 20
    answer = proved(run_dir, found(FindingKind.OVERWRITE, findings, count=5000), MAX_GROUPS)
    verdict = verdict_of(run_dir, answer)
    outputs, _, whole = outputs_of(run_dir, verdict)
    monkeypatch.setattr("analysis.report.MOST_BYTES", outputs.report.stat().st_size - 1)
    _, page, smaller = outputs_of(run_dir, verdict)
    assert len(smaller) < len(whole)
    assert "overwrite 5,000" in page.text
    assert page.text.count("same pattern: It did this") == 2
    assert "100 findings of this kind, in words" in page.text
    assert "4,900 more, counted and not listed" in page.text
    monkeypatch.setattr("analysis.report.MOST_BYTES", 0)
    _, page, smallest = outputs_of(run_dir, verdict)
    assert len(smallest) < len(smaller)
    assert "overwrite 5,000" in page.text
    assert "4,997 more, counted and not listed" in page.text


# --- plots ------------------------------------------------------------------------------


def test_plots_are_deterministic_and_leave_matplotlib_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    files = []
    for name in ("one", "two"):
        run_dir = write_run(tmp_path / name, Sample(orders=20, rate_per_s=300))
        with open_evidence(run_dir) as evidence:
            plots = render_plots(evidence, run_dir)
        assert {path.name for path in (run_dir / "plots").iterdir()} == {
            f"{plot.name}.{kind}" for plot in plots for kind in ("svg", "png")
        }
        files.append({path.name: path.read_bytes() for path in (run_dir / "plots").iterdir()})
    assert files[0] == files[1]
    assert dict(matplotlib.rcParams) == before


def test_embedded_plots_follow_the_page_and_say_what_they_show(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=40))
    with open_evidence(run_dir) as evidence:
        plots = render_plots(evidence, run_dir)
    for plot in plots:
        root = ET.fromstring(plot.svg)
        assert root.get("aria-label") == f"{plot.title}. {plot.caption}"
        assert "var(--ink)" in plot.svg
        assert [light for light, _ in PALETTE.values() if light in plot.svg] == []
        assert not re.search(r"#(?:ffffff|000000)", plot.svg)
        assert len(plot.svg) < 150_000


# --- JUnit and summary ------------------------------------------------------------------


def test_junit_has_a_case_for_every_check_and_rule(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=5))
    findings = [
        Finding(FindingKind.LOST_ORDER, f"k{number}", f"Order k{number} \x1b]0;<&> is lost.")
        for number in range(14)
    ]
    verdict = verdict_of(
        run_dir,
        found(FindingKind.LOST_ORDER, findings, count=1234),
        replace(
            clean(FindingKind.PREMATURE_ACK), status=CheckStatus.NOT_OBSERVABLE, note="No acks."
        ),
        replace(clean(FindingKind.WRONG_KEY), status=CheckStatus.CRASHED, note="Division by zero."),
    )
    root = ET.parse(write_junit(run_dir, verdict)).getroot()
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert set(cases) == {kind.value for kind in FindingKind} | {"no findings", "exposure"}
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == (
        str(len(FindingKind) + 2), "2", "1", "1",
    )  # fmt: skip
    failure = cases["lost-order"].find("failure")
    assert failure is not None
    assert failure.get("message") == "1,234 findings"
    lines = (failure.text or "").splitlines()
    assert lines[0] == "Order k0 \\u001b]0;<&> is lost."
    assert lines[-1] == "1,224 more"
    assert cases["premature-ack"].find("skipped").get("message") == "No acks."  # type: ignore[union-attr]
    assert cases["wrong-key"].find("error").get("message") == "Division by zero."  # type: ignore[union-attr]
    assert cases["no findings"].find("failure") is not None
    assert list(cases["exposure"]) == list(cases["overwrite"]) == []


def test_the_summary_tells_the_verdict_in_markdown_that_text_cannot_break(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=30))
    finding = Finding(FindingKind.OVERWRITE, "k", f"{HOSTILE} | `code` [x](y) @someone\n# head")
    verdict = verdict_of(run_dir, found(FindingKind.OVERWRITE, [finding], count=7))
    text = write_summary(run_dir, verdict).read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == "## onceproof: FAIL"
    (line,) = (line for line in lines if line.startswith("| overwrite"))
    assert line.startswith("| overwrite | 7 | ")
    assert re.sub(r"\\.", "", line).count("|") == 4
    assert not re.search(r"(?<!\\)[<>`\[\]@#]", line)
    assert any(line.startswith("| ✗ | no findings | 0 | 7 |") for line in lines)
    assert lines[-3:] == ["```text", "loadtest run --orders 30 --seed 1", "```"]
    (row,) = (line for line in lines if line.startswith("| end to end |"))
    assert re.fullmatch(r"\| end to end \| \d+ \|( [\d.,]+ \|){3}", row)


def test_the_summary_shows_how_a_finding_came_about(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, Sample(orders=10, overwrites=2))
    about = run_dir / "run.json"
    about.write_text(about.read_text().replace("loadtest run", "loadtest run --code '````x'"))
    lines = write_summary(run_dir, judge(run_dir)).read_text(encoding="utf-8").splitlines()
    start = lines.index("<details><summary>overwrite: how it came about</summary>")
    end = lines.index("</details>")
    block = lines[start + 1 : end]
    assert (block[0], block[1], block[-2], block[-1]) == ("", "```text", "```", "")
    assert any(line.startswith("So: ") for line in block)
    assert sum("=" in line for line in block) > 2, "the lanes"
    command = lines[-2]
    assert (lines[-3], lines[-1]) == ("`````text", "`````"), "text cannot end the block"
    assert command.startswith("loadtest run --code '````x'")
