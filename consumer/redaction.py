"""Takes secrets out of what is kept: evidence, logs, schedules. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping


class Redaction:
    """Puts ``[left out: NAME]`` where the value of the variable NAME stands.

    A value is found as it is, as it stands in a JSON text, and as it stands in a JSON text
    that another one quotes, which is how a row of evidence holds the body of a request.

    :param secrets: variable -> value, no value empty.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._words: dict[str, str] = {}
        # The longest first: one secret may be part of another.
        for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
            for ascii_only in (True, False):
                once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
                twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]
                self._words |= dict.fromkeys((twice, once, value), f"[left out: {name}]")
        self._encoded = {form.encode(): word.encode() for form, word in self._words.items()}

    def __call__(self, text: bytes) -> bytes:
        for form, word in self._encoded.items():
            text = text.replace(form, word)
        return text

    def text(self, text: str) -> str:
        for form, word in self._words.items():
            text = text.replace(form, word)
        return text


NOTHING_SECRET = Redaction({})
