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
from pathlib import Path

_OURS = ("analysis/schema.py", "consumer/zygote.py", "loadtest/stage.py")
"""Files by which a folder is known as a checkout of this distribution. Installed as a wheel,
its packages are on nobody's path."""


def arrange_path(code: str, packages: Sequence[str]) -> None:
    """Put the user's code first and its packages next, and leave ours out."""
    before = len(sys.path)
    for folder in packages:
        site.addsitedir(folder)  # follows its .pth files: packages installed as editable
    theirs = [code, *sys.path[before:]]
    rest = [
        folder
        for folder in sys.path[:before]
        if not all(Path(folder, name).is_file() for name in _OURS)
    ]
    sys.path[:] = [*theirs, *rest]


def main(code: str, client: str, handler: str, *packages: str) -> None:
    arrange_path(code, packages)
    sys.argv = [client, handler]
    if client == "awslambdaric":
        runpy.run_module(client, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(client, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
