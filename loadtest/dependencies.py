"""What a handler needs beside its own code: its packages and its layers.

They are put on the path of its processes alone; the tester's own environment stays as it is.
Where they are not found there, what the tester has installed stands in for what Lambda's
runtime brings: boto3 and its own dependencies.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from analysis.errors import HandlerError
from loadtest.sections import HandlerSettings

REQUIREMENTS = "requirements.txt"
_OLDEST = (3, 11)
_INSTALL_LIMIT_S = 900
_SHOWN_LINES = 12
_INCLUDES = re.compile(r"(?:-r|--requirement|-c|--constraint)[ =]?\s*(\S+)")


@dataclass(frozen=True, slots=True)
class Packages:
    """What the handler's processes are started with."""

    python: Path = Path(sys.executable)
    path: tuple[Path, ...] = ()  # folders to import from, after the code


async def packages_of(handler: HandlerSettings, phase: Callable[[str], None]) -> Packages:
    """Find the handler's packages, and install them into a cache where a file names them.

    Its layers come first, as in Lambda (``/opt/python`` before the runtime's own; Lambda
    developer guide, "Search paths for Python runtimes").

    :param phase: is told before something is installed.
    :raises HandlerError: they cannot be installed or used; the message says why.
    """
    packages = _packages_there(handler)
    if isinstance(packages, Packages):
        return packages
    folder = _cache(os.environ) / _digest(packages)
    if not folder.is_dir():
        phase(f"installing {packages.name} for the handler")
        await _install(packages, folder)
    return Packages(path=(*_layers(handler), folder))


def _packages_there(handler: HandlerSettings) -> Packages | Path:
    """What is there already; otherwise the file that says what to install."""
    found = handler.dependencies
    if found is None:
        found = find_dependencies(handler.code)
    if found and found.is_dir():
        return _of_environment(found.absolute(), _layers(handler))
    if found and not _are_here(found):
        return found.absolute()
    return Packages(path=_layers(handler))


def find_dependencies(code: Path) -> Path | None:
    """The virtual environment or the requirements file in the folder of the code."""
    for name in (".venv", "venv"):
        if (code / name / "pyvenv.cfg").is_file():
            return code / name
    return code / REQUIREMENTS if (code / REQUIREMENTS).is_file() else None


def _layers(handler: HandlerSettings) -> tuple[Path, ...]:
    packages = Path("python", "lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages")
    # The layer that is named last lies over the others.
    layers = [layer.absolute() for layer in reversed(handler.layers)]
    return tuple(layer / part for part in (packages, "python") for layer in layers)


# --- a virtual environment --------------------------------------------------------------


def _of_environment(folder: Path, layers: tuple[Path, ...]) -> Packages:
    if folder.resolve() == Path(sys.prefix).resolve():
        return Packages(path=layers)  # the one that this runs in
    version = _version_of(folder)
    if version == sys.version_info[:2]:
        places = {"base": str(folder), "platbase": str(folder)}
        names = dict.fromkeys(("purelib", "platlib"))
        found = [Path(sysconfig.get_path(name, "venv", places)) for name in names]
        return Packages(path=(*layers, *dict.fromkeys(found)))
    # What is compiled for another version can be imported by that one alone.
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if version < _OLDEST or not python.exists():
        raise HandlerError(
            f"the virtual environment {folder} is for Python {version[0]}.{version[1]}"
            + ("" if python.exists() else f", and {python} is not there")
            + f". Handlers run on Python {_OLDEST[0]}.{_OLDEST[1]} or newer: make it anew, or name "
            "another one, or a requirements file, in [handler] dependencies."
        )
    return Packages(python, layers)


def _version_of(folder: Path) -> tuple[int, int]:
    try:
        text = (folder / "pyvenv.cfg").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HandlerError(
            f"{folder} is no virtual environment: its pyvenv.cfg cannot be read ({error}). Name "
            "one, or a requirements file, in [handler] dependencies."
        ) from error
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
    if found is None:
        raise HandlerError(f"{folder}/pyvenv.cfg does not say which version of Python it is for.")
    return int(found[1]), int(found[2])


# --- a requirements file ----------------------------------------------------------------


def _are_here(file: Path) -> bool:
    """Whether the tester's own environment has all of it already, each in a wanted version."""
    for line in _lines(file):
        try:
            wanted = Requirement(line)
            if wanted.url or wanted.extras:
                return False
            if wanted.marker is not None and not wanted.marker.evaluate():
                continue
            if not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True):
                return False
        except (InvalidRequirement, metadata.PackageNotFoundError):
            return False
    return True


def _lines(file: Path) -> Iterable[str]:
    text = file.read_text("utf-8", "replace").replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _digest(file: Path) -> str:
    """Of all that decides what is installed: the file, those it includes, and the interpreter."""
    digest = hashlib.sha256(f"{sys.version}\0{sysconfig.get_platform()}".encode())
    waiting, seen = [file], set()
    while waiting:
        one = waiting.pop()
        if one in seen or not one.is_file():
            continue
        seen.add(one)
        content = one.read_bytes()
        digest.update(b"\0" + content)
        for line in _lines(one):
            if included := _INCLUDES.fullmatch(line):
                waiting.append(one.parent / included[1])
    return digest.hexdigest()[:24]


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "onceproof" / "packages"


async def _install(file: Path, folder: Path) -> None:
    """Into ``folder``, which is there afterwards with all of it, or not at all."""
    made = _new_folder_beside(folder)
    try:
        await _pip(file, made)
        # Another run may have been first: its folder holds the same.
        with contextlib.suppress(OSError):
            os.replace(made, folder)  # noqa: PTH105 - a path's own method is one for threads
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _new_folder_beside(folder: Path) -> Path:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise HandlerError(
            f"the handler's packages cannot be kept in {folder.parent}: "
            f"{error.strerror or error}. Set XDG_CACHE_HOME to a folder that can be written to."
        ) from error


async def _pip(file: Path, target: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    argv += ["--disable-pip-version-check", "--no-warn-script-location"]
    argv += ["--target", str(target), "--requirement", str(file)]
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=file.parent,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = b""
    try:
        async with asyncio.timeout(_INSTALL_LIMIT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        said = f"it took longer than {_INSTALL_LIMIT_S} s".encode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines()[-_SHOWN_LINES:]
        raise HandlerError(
            f"{file} could not be installed for the handler:\n" + "\n".join(lines) + "\n"
            "Mend the file, or name a virtual environment that has its packages in [handler] "
            "dependencies; dependencies = false goes without."
        )
