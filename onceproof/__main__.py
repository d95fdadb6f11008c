"""The command ``loadtest``, also as ``python -m onceproof``.

The tester's packages have names that a project may have too. Installed, they lie in a folder
of this package where no other program finds them; in a checkout, beside it. Here they come
before everything else on the path.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def main() -> None:
    own = _HERE / "packages"
    sys.path.insert(0, str(own if own.is_dir() else _HERE.parent))
    from loadtest.__main__ import main as command  # noqa: PLC0415 - found from here on

    command()


if __name__ == "__main__":
    main()
