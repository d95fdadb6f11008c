"""First code of an environment's process: arranges the path, then runs the runtime client.

Run by path as ``python -P bootstrap.py CODE CLIENT HANDLER``, standard library only. The
user's code comes first on the path, and the packages of this distribution cannot be
imported by accident: a handler that needs a package of the same name gets its own, or an
ImportError as it would in Lambda. The handler itself is imported by the runtime client.
"""

import runpy
import sys
from importlib.machinery import ModuleSpec, PathFinder

_OURS = frozenset({"analysis", "consumer", "loadtest", "onceproof"})


class _OursHidden:
    """Meta path finder that resolves our own package names in the code directory only."""

    def __init__(self, code: str) -> None:
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _OURS:
            return None
        spec = PathFinder.find_spec(name, [self._code])
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


def arrange_path(code: str) -> None:
    """Put the user's code first, and hide our packages."""
    sys.path.insert(0, code)
    sys.meta_path.insert(0, _OursHidden(code))


def main(code: str, client: str, handler: str) -> None:
    arrange_path(code)
    sys.argv = [client, handler]
    if client == "awslambdaric":
        runpy.run_module(client, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(client, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:4])
