"""``loadtest init``: looks into a folder, chooses a function, writes its ``loadtest.toml``.

The user's code is read, never imported.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis.errors import UsageError
from loadtest.config import settings_of
from loadtest.found import FoundFunction, Unknown
from loadtest.init_file import Beginning, Remark, orders_table, remarks_in, settings_text
from loadtest.plain_folder import find_handlers, folders_with
from loadtest.sample_event import OrderSample, sample_of
from loadtest.serverless import as_template, is_serverless
from loadtest.stack import find_functions
from loadtest.templates import MAX_TEMPLATE_BYTES, Template, read_document

_ENDINGS = (".yaml", ".yml", ".json", ".template")
_CDK = ("cdk.out/*.template.json", "cdk.out/assembly-*/*.template.json")
_EVENTS = ("events/*.json", "*event*.json", "tests/events/*.json")
"""Where saved events are: the first is SAM's own place."""
_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Written:
    """A new file, and what its author should know of it."""

    text: str
    function: FoundFunction
    remarks: tuple[Remark, ...]
    refused: str  # why a run would not take it yet; empty: it would


def init(folder: Path, template: Path | None, function: str | None, base: Path) -> Written:
    """The settings for a function of the folder.

    :param template: the file to read, instead of looking for one.
    :param function: its name, where there are several.
    :param base: the folder that the paths of the new file are relative to.
    :raises UsageError: nothing, or too much, was found.
    """
    found = _of_templates(folder, template)
    from_template = found is not None
    if found is None:
        handlers = find_handlers(folder)
        if not handlers:
            raise UsageError(
                f"{folder}: has no template, and no Python function of (event, context). Name a "
                "template with --template FILE, or another folder."
            )
        chosen = _chosen(handlers, function, "looks like a handler")
    else:
        chosen = _chosen(_behind_queues(found, function), function, "is behind a queue")
    beginning = _beginning(chosen, folder, base, from_template=from_template)
    text = settings_text(chosen, beginning)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{chosen.label}: {chosen.name}: a text of it is no Unicode (half of a surrogate pair)"
        ) from error
    refused = ""
    try:
        settings_of(tomllib.loads(text), base)
    except UsageError as error:
        refused = str(error)
    return Written(text, chosen, tuple(remarks_in(text)), refused)


# --- templates --------------------------------------------------------------------------


def _of_templates(folder: Path, template: Path | None) -> tuple[FoundFunction, ...] | None:
    """The functions of the folder's templates, or of the one named; None for no template.

    Templates of one folder may import each other's exports, so all are read together.
    """
    paths = [
        *sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS and path.is_file()),
        *sorted(path for pattern in _CDK for path in folder.glob(pattern)),
    ]
    templates = []
    if template is not None:
        templates.append(_read(template, _label(template, folder)))
        paths = [
            path
            for path in sorted(template.parent.iterdir())
            if path.suffix in _ENDINGS and path.is_file() and not path.samefile(template)
        ]
    unreadable: list[UsageError] = []
    for path in filter(_looks_like_one, paths):
        try:
            templates.append(_read(path, _label(path, folder)))
        except UsageError as error:  # nobody named it: it may be something else
            unreadable.append(error)
    if not templates and unreadable:
        raise unreadable[0]
    if not templates:
        return None
    functions = find_functions(templates)
    if template is not None:
        label = templates[0].label
        functions = tuple(function for function in functions if function.label == label)
    if not functions:
        names = ", ".join(one.label for one in templates)
        raise UsageError(f"{names}: has no Lambda function")
    return functions


def _looks_like_one(path: Path) -> bool:
    """Whether a file that nobody named is worth reading: others of its kind lie about."""
    if path.stem == "serverless":
        return True
    try:
        with path.open("rb") as file:
            start = file.read(MAX_TEMPLATE_BYTES)
    except OSError:
        return False
    return b"Resources" in start and b"AWS::" in start


def _read(path: Path, label: str) -> Template:
    try:
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise UsageError(
                f"{label}: has more than {MAX_TEMPLATE_BYTES} bytes, the most that CloudFormation "
                "takes for a template"
            )
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{label}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{label}: is not UTF-8 text") from error
    document = read_document(text, label)
    if is_serverless(document):
        document = as_template(document, label)
    elif not isinstance(document.get("Resources"), dict):
        raise UsageError(f"{label}: is no template: it has no Resources")
    return Template(document, label)


def _label(path: Path, folder: Path) -> str:
    """The file as the user knows it."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


# --- choosing ---------------------------------------------------------------------------


def _behind_queues(
    functions: Sequence[FoundFunction], wanted: str | None
) -> tuple[FoundFunction, ...]:
    """Those that a run can take: Python, behind a queue."""
    label = ", ".join(dict.fromkeys(function.label for function in functions))
    behind = tuple(function for function in functions if function.mappings)
    if wanted is not None and any(function.name == wanted for function in functions):
        behind = tuple(function for function in functions if function.name == wanted)
        if not behind[0].mappings:
            raise UsageError(f"{label}: no event source mapping leads from a queue to {wanted}")
    if not behind:
        raise UsageError(
            f"{label}: no function is behind a queue: none has an event of SQS or an event "
            "source mapping from one. Without --template, a folder with no template is searched "
            "for handlers."
        )
    python = tuple(
        function
        for function in behind
        if function.runtime is None or function.runtime.startswith("python")
    )
    if not python:
        names = ", ".join(f"{function.name} ({function.runtime})" for function in behind)
        raise UsageError(f"{label}: loadtest runs Python handlers, and none is: {names}")
    return python


def _chosen(functions: Sequence[FoundFunction], wanted: str | None, what: str) -> FoundFunction:
    """The one wanted, or the only one."""
    matching = [function for function in functions if wanted in (None, function.name)]
    if len(matching) == 1:
        return matching[0]
    listed = "\n".join(f"  {one.name}  ({one.label})" for one in functions[:_MAX_LISTED])
    if len(functions) > _MAX_LISTED:
        listed += f"\n  and {len(functions) - _MAX_LISTED} more"
    if not matching:
        raise UsageError(f"--function {wanted}: no such function {what}. There are:\n{listed}")
    if wanted is not None:
        raise UsageError(f"Several are called {wanted}; choose with --template FILE:\n{listed}")
    raise UsageError(f"Several functions could be meant; choose with --function NAME:\n{listed}")


# --- code and handler -------------------------------------------------------------------


def _beginning(
    function: FoundFunction, folder: Path, base: Path, *, from_template: bool
) -> Beginning:
    """Where the code is, and the handler in it. A template may name an archive, or nothing."""
    start = (folder / function.label).parent if from_template else folder
    questions: list[str] = []
    code: Path | None = None
    unknown = "the template names none"
    match function.code:
        case str(named):
            code = start / named
            if not code.is_dir():
                code = _unpacked(code, function)
        case Unknown(why=why):
            unknown = why
    handler = function.handler
    if not isinstance(handler, str):
        why = handler.why if handler is not None else "the template names none"
        guesses = find_handlers(code or folder)
        handler = str(guesses[0].handler) if len(guesses) == 1 else "app.handler"
        only = ", the only one in the code" if len(guesses) == 1 else ""
        questions.append(
            f"What is the handler, as module.function? No more is known: {why}. Taken for: "
            f"{handler}{only}."
        )
    module = handler.rpartition(".")[0]
    if code is None:
        places = folders_with(module, folder)
        code = places[0] if places else folder
        has = ", which has the handler's module" if len(places) == 1 else ""
        questions.insert(
            0,
            f"Which folder has the code? No more is known: {unknown}. Taken for: "
            f"{_relative(code, base)}{has}.",
        )
    elif not _has_module(code, module):
        questions.append(f"Where is {module}? The code folder has no such module.")
    if function.copied_code:
        questions.append(
            "Is a copy of the code what you want to test? cdk synth made it; after a change "
            "synthesize again, or name the source folder."
        )
    layers = []
    for layer in function.layers:
        if (start / layer / "python").is_dir():
            layers.append(_relative(start / layer, base))
        else:
            questions.append(
                f"Where is the layer {layer} as Lambda unpacks it, with python/ in it? Say layers "
                "= [folder]; not if its packages are in requirements.txt, or beside onceproof."
            )
    sample, sample_source = _sample(folder, function)
    return Beginning(
        source=function.label,
        code=_relative(code, base),
        handler=handler,
        from_template=from_template,
        questions=questions,
        layers=layers,
        sample=sample,
        sample_source=sample_source,
    )


def _has_module(code: Path, module: str) -> bool:
    path = code.joinpath(*module.replace("/", ".").split("."))
    return path.with_name(f"{path.name}.py").is_file() or (path / "__init__.py").is_file()


def _sample(folder: Path, function: FoundFunction) -> tuple[OrderSample | None, str]:
    """An order from a saved event, and the file that has it."""
    table = orders_table(function)
    for path in (path for pattern in _EVENTS for path in sorted(folder.glob(pattern))):
        try:
            if path.stat().st_size > MAX_TEMPLATE_BYTES:
                continue
            sample = sample_of(path.read_text("utf-8"), table.key if table else None)
        except (OSError, UnicodeDecodeError):
            continue  # no event then; the question about messages stays
        if sample is not None:
            return sample, _label(path, folder)
    return None, ""


def _unpacked(code: Path, function: FoundFunction) -> Path:
    """A single file as code stands for its folder, as in SAM."""
    if code.is_file() and code.suffix == ".py":
        return code.parent
    what = "is an archive: unpack it" if code.is_file() else "is not there: build it"
    raise UsageError(
        f"{function.label}: {function.name}: its code, {function.code}, {what}, or correct the "
        f"template (looked for {code})"
    )


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()


# --- the command ------------------------------------------------------------------------


def check_place(out: Path, folder: Path, *, force: bool) -> None:
    """
    :raises UsageError: a file is there already, or its folder is not.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder")
    if out.is_dir():
        raise UsageError(f"{out}: is a folder; name a file with --out")
    if out.exists() and not force:
        raise UsageError(f"{out}: is there already; --force replaces it, --out names another file")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: its folder is not there")


def write(out: Path, written: Written) -> None:
    """
    :raises UsageError: it cannot be written.
    """
    try:
        out.write_text(written.text, "utf-8")
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror}") from error


def print_written(console: Console, written: Written, out: Path | None) -> None:
    """What was written, what is asked, and what to do next.

    :param out: the new file; None when its text went to standard output.
    """
    place = "standard output" if out is None else str(out)
    name, label = written.function.name, written.function.label
    console.print(Text(f"{place}: settings for {name}, from {label}"), soft_wrap=True)
    for mark, title, style in (
        ("QUESTION", "To be answered in it, with a guess or nothing until then:", "bold"),
        ("REFUSED", "Refused by AWS, and by loadtest run:", "bold red"),
        ("NOTE", "Worth knowing:", "bold"),
    ):
        remarks = [remark for remark in written.remarks if remark.mark == mark]
        if remarks:
            console.print(Text(f"\n{title}", style))
        for remark in remarks:
            line = Text(f"  line {remark.line_no:>3}  ", "dim")
            console.print(line + Text(remark.text), soft_wrap=True)
    if written.refused:
        console.print(Text("\nloadtest run will not take it until this is changed:", "bold red"))
        for problem in written.refused.splitlines():
            console.print(Text(f"  {problem}"), soft_wrap=True)
    if out is not None:
        option = "" if out == Path("loadtest.toml") else f" --config {out}"
        console.print(Text(f"\nNext: loadtest doctor{option}, then loadtest run{option}"))
