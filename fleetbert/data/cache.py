"""Tables larger than memory: tokenized once into files that are mapped into memory.

FOLDER/<key>/                   the key: of the table's bytes and of all that decides its tokens
  00000-<sha256>.arrow, ...     tokens of one piece of the table, with the hash of the file
  lengths.npy, labels.npy, ...  what is known of each text, of all pieces
  manifest.json                 names and hashes of the others, written last

A piece of the table is read, tokenized and written by one of as many processes as there are
processors. A file is written aside and renamed when it is whole, so whatever stops the writing,
the next start goes on with the pieces that are missing. Every start hashes every byte of the table
and of its cache, and makes again what is not as it was written.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import io
import json
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import BinaryIO, Dict, Iterator, NamedTuple, Sequence

import numpy as np
import pyarrow as pa
from tokenizers import __version__ as library_version

from fleetbert.core import files, limits, locks, progress
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import read, tokenizers, windows, workers
from fleetbert.data.rows import Rows
from fleetbert.data.split import Encode, Fingerprint, Split, tokenize
from fleetbert.data.tokenizers import Encodings, Spec, Tokenizer

log = logging.getLogger(__name__)

Manifest = Dict[str, object]

FORMAT = 2
# Bytes of the table that one process reads at a time, up to the end of a line.
PIECE = 8 << 20
COLUMNS = {"lengths": "<i4", "first_lengths": "<i4", "labels": "<i8", "lines": "<i8"}
DIVIDED = ("begins", "ends")  # besides, of texts that windows divide, int32
KNOWN = b"fleetbert"  # the Arrow file's own entry for what is known of a piece


class Recipe(NamedTuple):
    """What decides the tokens of a table, besides its bytes. encode: the task's, see `tokenize`;
    tasks that differ in it differ in `form` or `pair` too."""

    form: read.Format
    on_bad_line: str
    tokenizer: Spec
    pair: bool
    reading: Reading
    encode: Encode = windows.encode


class Piece(NamedTuple):
    """Whole lines of a table."""

    start: int  # bytes of the file before it
    size: int
    line: int  # number of its first line, from 1
    sha256: str


class Ids(Rows):
    """Token ids of each text (int32 [length]), or with `words` `Encodings.words`, views into the
    mapped files."""

    def __init__(self, paths: Sequence[Path], words: bool = False):
        self._made_of = (list(paths), words)
        self._words = words
        columns = [_open(path).column("words" if words else "ids") for path in paths]
        self._ids = [column.values.to_numpy() for column in columns]  # int32 [any], of a piece
        self._offsets = [column.offsets.to_numpy() for column in columns]
        self._ends = np.cumsum([len(column) for column in columns]).tolist()

    def __reduce__(self) -> tuple[type[Ids], tuple[list[Path], bool]]:
        """Another process maps the files itself."""
        return type(self), self._made_of

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def pieces(self) -> Sequence[np.ndarray]:
        """The ids of all texts of each piece, int32, one after the other."""
        return self._ids

    def row(self, number: int) -> np.ndarray:
        piece = bisect.bisect_right(self._ends, number)
        offsets = self._offsets[piece]
        row = number - (self._ends[piece] - len(offsets) + 1)
        ids = self._ids[piece][offsets[row] : offsets[row + 1]]
        return ids.reshape(-1, 3) if self._words else ids


def prepare(name: str, folder: Path, recipe: Recipe) -> Path:
    """Make the cache of the table `name` in `folder`, as far as it is not there yet.

    Returns its own folder, for `load`. Raises UserError for what `read.read_as` raises it for, and
    when the cache cannot be written.
    """
    try:
        pieces = list(_pieces(name, recipe.form))
        cached = folder / _key(pieces, recipe)
        cached.mkdir(parents=True, exist_ok=True)
        lock = cached / "lock"
        with contextlib.ExitStack() as stack:
            try:  # another job that wants the same tokens waits, and then has them
                stack.enter_context(locks.only_writer(lock, f"data.cache: {cached}", "", wait=True))
            except OSError:  # a folder that is only read is enough where all is there
                if not (cached / "manifest.json").is_file():
                    raise
            done = _whole_pieces(cached, len(pieces))
            missing = [number for number in range(len(pieces)) if number not in done]
            if missing:
                done.update(_make(name, cached, recipe, pieces, missing))
            paths = [done[number] for number in range(len(pieces))]
            if not _is_finished(cached, paths):
                _finish(name, cached, paths)
    except OSError as error:
        raise UserError(
            f"data.cache: the tokens of {name} cannot be kept in {folder}: "
            f"{error.strerror or error}; choose another folder, or none to hold them in memory"
        ) from error
    return cached


def load(name: str, cached: Path) -> tuple[Split, list[str]]:
    """What `prepare` has made: the split as `split.tokenize` gives it, mapped, and its labels."""
    try:
        manifest = json.loads((cached / "manifest.json").read_text(encoding="utf-8"))
        pieces = [cached / path for path in manifest["pieces"]]
        has_words = any("words" in _open(path).schema.names for path in pieces[:1])
        ids, words = Ids(pieces), Ids(pieces, True) if has_words else None
        # Views: plain arrays, where np.memmap would be asked at each access what it is.
        columns = {
            column: np.load(cached / f"{column}.npy", mmap_mode="r").view(np.ndarray)
            for column in manifest["columns"]
        }
    except (OSError, ValueError, KeyError) as error:  # Arrow's own errors are ValueErrors too
        raise UserError(
            f"data.cache: {cached} cannot be read ({error}); all ranks have to see it, and nothing "
            "may change it while they run"
        ) from error
    encodings = Encodings(
        ids, columns["first_lengths"], manifest["cut"], columns["lengths"], words=words
    )
    if reading := manifest.get("reading"):
        divided = np.stack([columns[name] for name in DIVIDED], 1)
        encodings = encodings._replace(divided=divided, reading=Reading(*reading))
    split = Split(
        name,
        encodings,
        columns["labels"],
        manifest["skipped"],
        columns["lines"],
        manifest["fingerprint"],
        cached,
    )
    return split, manifest["labels"]


def _pieces(name: str, form: read.Format) -> Iterator[Piece]:
    """The table in pieces of whole records, hashed."""
    with read.opened(name) as file:
        if form.has_records:
            yield from _of_records(form.records(enumerate(file, 1)))
        else:
            yield from _of_lines(file)


def _of_records(records: Iterator[tuple[int, bytes]]) -> Iterator[Piece]:
    start, line, size, digest = 0, 1, 0, hashlib.sha256()
    for number, record in records:
        if size >= PIECE:
            yield Piece(start, size, line, digest.hexdigest())
            start, line, size, digest = start + size, number, 0, hashlib.sha256()
        digest.update(record)
        size += len(record)
    if size:
        yield Piece(start, size, line, digest.hexdigest())


def _of_lines(file: BinaryIO) -> Iterator[Piece]:
    start, line = 0, 1
    for lines in iter(lambda: file.readlines(PIECE), []):
        block = b"".join(lines)
        yield Piece(start, len(block), line, hashlib.sha256(block).hexdigest())
        start, line = start + len(block), line + len(lines)


def _key(pieces: Sequence[Piece], recipe: Recipe) -> str:
    digest = hashlib.sha256()
    spec = recipe.tokenizer
    hashes = {name: files.sha256(path) for name, path in spec.files.items()}
    reading = recipe.reading
    how = (recipe.pair, reading.max_length if reading.long_texts == "cut" else reading)
    words = [FORMAT, library_version, spec._replace(files={}), hashes, *recipe[:2], *how]
    digest.update(json.dumps(words).encode())
    for piece in pieces:
        digest.update(piece.sha256.encode())
    return digest.hexdigest()[:32]


def _whole_pieces(cached: Path, count: int) -> dict[int, Path]:
    """The finished pieces whose bytes are as they were written; others are removed and named."""
    whole: dict[int, Path] = {}
    paths = sorted(cached.glob("*.arrow"))
    with ThreadPoolExecutor(limits.read().processors) as pool:  # hashing lets other threads run
        for path, sha256 in zip(paths, pool.map(files.sha256, paths)):
            number, _, written = path.stem.partition("-")
            if sha256 != written:
                log.warning(
                    f"{path}: is not what was written (its sha256 differs); it is made again"
                )
                path.unlink()
            elif number.isdigit() and int(number) < count:
                whole[int(number)] = path
    return whole


def _make(
    name: str, cached: Path, recipe: Recipe, pieces: list[Piece], missing: list[int]
) -> dict[int, Path]:
    """Tokenize the missing pieces on all processors."""
    processors = limits.read().processors
    total = sum(piece.size for piece in pieces)
    there = total - sum(pieces[number].size for number in missing)
    for leftover in cached.glob(".*"):  # of killed writers; the lock keeps others out
        leftover.unlink()
    made: dict[int, Path] = {}
    futures: list[Future[Path]] = []
    title = f"tokenizing {Path(name).name}"
    bar = progress.bar(total=total, initial=there, unit="B", unit_scale=True, desc=title)
    with bar, workers.start(min(processors, len(missing)), _open_tokenizer, recipe) as pool:
        try:
            futures = [pool.submit(_write_piece, name, cached, pieces[n], n) for n in missing]
            for number, future in zip(missing, futures):  # in order: the first bad line is told
                made[number] = future.result()
                bar.update(pieces[number].size)
        except BrokenProcessPool:
            raise UserError(
                f"data.cache: a process that tokenized {name} was killed (out of memory?); the "
                "same command goes on with what is missing"
            ) from None
        finally:
            for future in futures:
                future.cancel()
    return made


# The recipe and its tokenizer in a worker process.
_recipe: tuple[Recipe, Tokenizer]


def _open_tokenizer(recipe: Recipe) -> None:
    global _recipe
    _recipe = recipe, tokenizers.open(recipe.tokenizer)


def _write_piece(name: str, cached: Path, piece: Piece, number: int) -> Path:
    recipe, tokenizer = _recipe
    with read.opened(name) as file:
        file.seek(piece.start)
        content = file.read(piece.size)
    if hashlib.sha256(content).hexdigest() != piece.sha256:
        raise UserError(f"{name}: was changed while it was read; start again when it is complete")
    numbered = enumerate(io.BytesIO(content), piece.line)
    table = read.parse_lines(name, numbered, recipe.form, recipe.on_bad_line)
    how = (recipe.pair, recipe.form.labelled, recipe.reading, recipe.encode)
    split, labels = tokenize(name, table, tokenizer, *how)
    encodings = split.encodings
    columns = {
        "ids": _lists(encodings.ids),
        "lengths": pa.array(encodings.lengths),
        "first_lengths": pa.array(encodings.first_lengths),
        "labels": pa.array(split.labels),
        "lines": pa.array(split.lines),
    }
    if encodings.divided is not None:
        columns.update(zip(DIVIDED, map(pa.array, encodings.divided.T)))
    if encodings.words is not None:
        columns["words"] = _lists([words.reshape(-1) for words in encodings.words])
    known = {
        "labels": labels, "cut": encodings.truncated, "skipped": split.skipped,
        "first_skipped": table.skipped[:1], "reading": encodings.reading,
    }  # fmt: skip
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    batch = batch.replace_schema_metadata({KNOWN: json.dumps(known)})
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, batch.schema) as writer:
        writer.write_batch(batch)
    written = content.getvalue()
    path = cached / f"{number:05d}-{hashlib.sha256(written).hexdigest()}.arrow"
    with files.replacing(path) as stream:
        stream.write(written)
    return path


def _lists(rows: Sequence[np.ndarray]) -> pa.ListArray:
    """Of int32 [any length] each."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    values = np.concatenate([*rows, np.zeros(0, np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _finish(name: str, cached: Path, paths: Sequence[Path]) -> None:
    """Lay what is known of each text end to end, and write the manifest."""
    (cached / "manifest.json").unlink(missing_ok=True)
    batches = [_open(path) for path in paths]
    known = [json.loads(batch.schema.metadata[KNOWN]) for batch in batches]
    texts, skipped = sum(batch.num_rows for batch in batches), sum(k["skipped"] for k in known)
    bad = [line for piece in known for line in piece["first_skipped"]]
    read.check_not_empty(name, texts, skipped, bad)
    labels = sorted({label for piece in known for label in piece["labels"]})
    places = {label: number for number, label in enumerate(labels)}

    def values_of(number: int, column: str) -> np.ndarray:
        values = batches[number].column(column).to_numpy()
        if column == "labels" and labels:
            values = np.array([places[label] for label in known[number]["labels"]], "i8")[values]
        return values.astype(COLUMNS.get(column, "<i4"))

    reading = known[0]["reading"] if known else None
    names = [*COLUMNS, *(DIVIDED if reading else ())]
    for column in names:
        with files.replacing(cached / f"{column}.npy") as file:
            kind = COLUMNS.get(column, "<i4")
            header = {"descr": kind, "fortran_order": False, "shape": (texts,)}
            np.lib.format.write_array_header_1_0(file, header)
            for number in range(len(batches)):
                file.write(values_of(number, column).tobytes())
    fingerprint = Fingerprint()
    for number, batch in enumerate(batches):
        lengths, numbers = (values_of(number, column) for column in ("lengths", "labels"))
        fingerprint.add(batch.column("ids").values.to_numpy(), lengths, numbers)
    manifest: Manifest = {
        "format": FORMAT,
        "pieces": [path.name for path in paths],
        "columns": {column: files.sha256(cached / f"{column}.npy") for column in names},
        "reading": reading,
        "labels": labels,
        "cut": sum(piece["cut"] for piece in known),
        "skipped": skipped,
        "fingerprint": fingerprint.hexdigest(),
    }
    manifest["sha256"] = _sha256(manifest)
    with files.replacing(cached / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1).encode())


def _is_finished(cached: Path, paths: Sequence[Path]) -> bool:
    """Whether manifest and columns are as they were written, and of these pieces."""
    path = cached / "manifest.json"
    if not path.is_file():
        return False
    wrong = [path]
    with contextlib.suppress(ValueError, KeyError, AttributeError):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest.pop("sha256") == _sha256(manifest):
            if manifest["pieces"] != [piece.name for piece in paths]:
                return False
            columns = {
                cached / f"{name}.npy": sha256 for name, sha256 in manifest["columns"].items()
            }
            wrong = [p for p, sha in columns.items() if not p.is_file() or files.sha256(p) != sha]
    for path in wrong:
        log.warning(f"{path}: is not what was written (its sha256 differs); it is made again")
    return not wrong


def _sha256(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _open(path: Path) -> pa.RecordBatch:
    """The one record batch of an Arrow file, mapped."""
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
