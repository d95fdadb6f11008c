"""Never imported: only its place matters."""

raise RuntimeError("init must not import the code")
