"""First code of an environment's process: arranges the path, then runs the runtime client.

Run by path as ``python -P bootstrap.py CODE CLIENT HANDLER [FOLDER...]``, standard library
only. The user's code comes first on the path, then the folders of its own packages, and the
packages of this distribution cannot be imported by accident: a handler that needs a package
of the same name gets its own, or an ImportError as it would in Lambda. The handler itself is
imported by the runtime client.
"""

import runpy
import site
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder

_OURS = frozenset({"analysis", "consumer", "loadtest", "onceproof"})


class _OursHidden:
    """Meta path finder that resolves our own package names in the user's folders only."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _OURS:
            return None
        spec = PathFinder.find_spec(name, self._folders)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


def arrange_path(code: str, packages: Sequence[str]) -> None:
    """Put the user's code first and its packages next, and hide our packages."""
    before = len(sys.path)
    for folder in packages:
        site.addsitedir(folder)  # follows its .pth files: packages installed as editable
    theirs = [code, *sys.path[before:]]
    sys.path[:] = [*theirs, *sys.path[:before]]
    sys.meta_path.insert(0, _OursHidden(theirs))


def main(code: str, client: str, handler: str, *packages: str) -> None:
    arrange_path(code, packages)
    sys.argv = [client, handler]
    if client == "awslambdaric":
        runpy.run_module(client, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(client, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
