"""How the rows of a table are read. Whoever answers needs this section alone."""

from __future__ import annotations

import shlex
from typing import ClassVar, Dict, List, Literal, Mapping, Optional

from fleetbert.config.section import Section, key


class Columns(Section):
    """Which columns of a table, or fields of JSONL, are read, how they are quoted, and what becomes
    of invalid rows: of every table of a job."""

    # The key to every column that has one, by the field of a `data.records.Example`.
    KEYS: ClassVar[Mapping[str, str]] = {
        "text_a": "text_column",
        "text_b": "text_pair_column",
        "text_c": "negative_column",
        "label": "label_column",
    }
    # How the user of these keys writes one, of its name (or option) and column (or word).
    spelling: ClassVar[str] = "data.{name}={word}"

    text_column: Optional[str] = key(
        None,
        "column of the text, in .tsv and .csv, or field in .jsonl (null: text_a, text or sentence)",
        common_for=("train", "distill", "quantize", "select"),
        on_resume="free",
    )
    text_pair_column: Optional[str] = key(
        None, "pairs: column of the second text (null: text_b)", on_resume="free"
    )
    negative_column: Optional[str] = key(
        None,
        "embedding, ranking: column of a text that does not belong to the first (null: text_c)",
        on_resume="free",
    )
    label_column: Optional[str] = key(
        None,
        "column of the label (null: label; named entities in .jsonl: label or spans)",
        common_for=("train", "distill", "quantize", "select"),
        on_resume="free",
    )
    quoting: Literal["auto", "none", "minimal"] = key(
        "auto",
        "quoting of fields in .tsv and .csv (RFC 4180): auto: as the file looks, which the log "
        "says; none: quotes are characters; minimal: fields may be quoted",
    )
    on_bad_line: Literal["stop", "skip"] = key(
        "stop",
        "stop at an invalid row of any table, with its line number, or skip and count invalid rows",
    )

    def given(self, field: str) -> Optional[str]:
        """The column that a user has named for a field; None: the usual one."""
        column: Optional[str] = getattr(self, self.KEYS[field])
        return column

    def names(self) -> Dict[str, List[str]]:
        """The names that each field's column may have, of which the first that is there counts."""
        names = {}
        for field in self.KEYS:
            given = self.given(field)
            names[field] = [given] if given else [field, *OTHER_NAMES.get(field, ())]
        return names

    def spelled(self, field: str, column: str) -> str:
        """What a user writes so that `field` is read from this column."""
        return self.setting(self.KEYS[field], column)

    def setting(self, name: str, column: str) -> str:
        """How a user writes the key `name`."""
        word = shlex.quote(column)
        option = f"--{name.replace('_', '-')}"
        return self.spelling.format(name=name, option=option, column=column, word=word)


# Other names of columns that are read without a key.
OTHER_NAMES = {"text_a": ("text", "sentence")}
