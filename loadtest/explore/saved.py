"""Schedules in files: what they were made for, and whether they still fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.errors import UsageError
from loadtest import __version__
from loadtest.config import Settings, load_settings
from loadtest.explore.asked import Asked, Place
from loadtest.explore.ladder import Rung
from loadtest.explore.model import Schedule
from loadtest.explore.schedule import Origin, read
from loadtest.explore.world import Bounds


@dataclass(frozen=True, slots=True)
class Saved:
    """A schedule from its file, and what it is carried out with."""

    file: Path
    settings: Settings
    asked: Asked
    schedule: Schedule
    changed: tuple[str, ...]  # what is not as it was; it may fit all the same


def load_schedule(
    file: Path, *, code: Path | None, handler: str | None, config: Path | None, cwd: Path
) -> Saved:
    """Read a saved schedule, and check that it is one of this handler and configuration.

    Handler, code and configuration are the file's own unless they are named. Other code, or
    another version of the tool, is no reason to refuse it: whether it still fits is seen when
    it is carried out. Other settings are one, as they make other messages.

    :raises UsageError: it cannot be read, or is of other settings.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--replay: {file} cannot be read: {reason}.") from error
    origin, schedule = read(text, str(file))
    world = _world(origin.world, file)
    if handler is not None and handler != origin.handler:
        raise UsageError(
            f"--replay: {file} is a schedule of {origin.handler}, not of {handler}. Leave "
            "--handler out, or explore again."
        )
    named = world["config"]
    settings = load_settings(
        config if config is not None or named is None else Path(named),
        {"handler.code": code or Path(world["code"]), "handler.handler": origin.handler},
        cwd,
    )
    if _settings_digest(settings) != world["settings"]:
        raise UsageError(
            f"--replay: {file} was made with other settings of order, tables, queue, results, "
            f"effects or timeout{_by(origin)}, and would now meet other messages. Name the "
            "configuration it was made with (--config), or explore again."
        )
    changed = []
    if code_digest(settings.handler.code) != origin.code:
        changed.append(f"the code in {settings.handler.code} has changed since")
    if origin.tool != __version__:
        changed.append(f"it was made by version {origin.tool}, and this is {__version__}")
    bounds = origin.bounds
    asked = Asked(
        (Rung(len(bounds.bodies), bounds.faults, tuple(bounds.limits)),),
        world["orders"],
        world["conflict"],
        world.get("poison", False),
        bounds.batch,
        seed=world["seed"],
    )
    return Saved(file, settings, asked, schedule, tuple(changed))


def _by(origin: Origin) -> str:
    return "" if origin.tool == __version__ else f", or by another version ({origin.tool})"


_WORLD: Mapping[str, type | tuple[type, ...]] = {
    "code": str,
    "config": (str, type(None)),
    "orders": int,
    "conflict": bool,
    "seed": int,
    "settings": str,
}


def _world(text: str, file: Path) -> dict[str, Any]:
    try:
        world = json.loads(text)
    except ValueError:
        world = None
    if not isinstance(world, dict) or not all(
        name in world and isinstance(world[name], kind) for name, kind in _WORLD.items()
    ):
        raise UsageError(
            f"--replay: {file}: 'world' must be JSON with {', '.join(_WORLD)}. Was the file "
            "changed by hand?"
        )
    return world


def with_names(schedule: Schedule, names: Mapping[str, str]) -> Schedule:
    """The schedule with other names in its calls."""

    def named(text: str) -> str:
        for old, new in names.items():
            text = text.replace(old, new) if old else text
        return text

    return tuple(
        choice if choice.call is None else replace(choice, call=named(choice.call))
        for choice in schedule
    )


def origin_of(settings: Settings, asked: Asked, place: Place, bounds: Bounds) -> Origin:
    """What a schedule of this exploration was made for."""
    world = {
        "code": _shown(settings.handler.code, place.cwd),
        "config": None if place.config is None else str(place.config),
        "orders": asked.orders,
        "conflict": asked.conflict,
        "poison": asked.poison,
        "seed": asked.seed,
        "settings": _settings_digest(settings),
    }
    return Origin(
        settings.handler.handler,
        code_digest(settings.handler.code),
        __version__,
        bounds,
        json.dumps(world),
    )


def _shown(path: Path, cwd: Path) -> str:
    full = (cwd / path).resolve()
    return str(full.relative_to(cwd)) if full.is_relative_to(cwd) else str(full)


def code_digest(code: Path) -> str:
    """Of the Python files of a folder, hidden folders left out."""
    digest = hashlib.sha256()
    files = [path for path in code.rglob("*.py") if path.is_file()]
    names = {path.relative_to(code).as_posix(): path for path in files}
    for name, path in sorted(names.items()):
        if any(part.startswith(".") for part in name.split("/")):
            continue
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def _settings_digest(settings: Settings) -> str:
    """Of what the messages, the store and the judgement rest on."""
    told = (
        settings.order,
        settings.tables,
        settings.queue,
        settings.result,
        settings.effects,
        settings.handler.timeout_s,
    )
    return f"sha256:{hashlib.sha256(repr(told).encode()).hexdigest()}"
