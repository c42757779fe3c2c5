"""What the tests catch: small faults put into the code (mutants), and the tests that notice them.

  python tests/mutants.py record DATA [ARGUMENTS]          run pytest, note what runs each line
  python tests/mutants.py draw DATA --count 80 --seed 0    write tests/mutants.json
  python tests/mutants.py run DATA RESULTS --marks MARKS   try each mutant on the tests of its line
  python tests/mutants.py table RESULTS [RESULTS ...]      a table in Markdown

A mutant is one changed line: an operator, a constant, a condition or two arguments swapped. Draws
are spread over the rooms by their lines, among lines that tests run. `run` works in copies of the
checkout. It takes the tests that run the line, in any process, the quickest first, as many as fit
into a budget of seconds: a mutant that none of them notices lives. This file is also the plug-in of
pytest that `record` uses.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.json"
SOURCES = ("fleetbert", "deploy", "launch")
NOTES = "FLEETBERT_MUTANTS_NOTES"  # where the plug-in writes a line for each test
CONFIG = """\
[run]
parallel = true
data_file = {data}/coverage
source =
    {sources}
context = ${{PYTEST_CURRENT_TEST}}
patch = _exit
"""
OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in",
    "not in": "in", "is": "is not", "is not": "is", "+": "-", "-": "+", "*": "+", "/": "*",
    "//": "/", "%": "*", "and": "or", "or": "and",
}  # fmt: skip
SLACK = 240  # seconds over the budget, for a mutant that hangs


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    _note_since(f"{nodeid} (setup)")


def pytest_runtest_call(item: Any) -> None:
    _note_since(f"{item.nodeid} (call)")


def pytest_configure(config: Any) -> None:
    if not hasattr(config, "workerinput"):  # the process that all report to
        config.pluginmanager.register(Notes(Path(os.environ[NOTES])))


class Notes:
    """Writes how each test went."""

    def __init__(self, path: Path):
        self.path = path  # now: a test may empty the environment

    def pytest_runtest_logreport(self, report: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            row = [report.nodeid, report.when, report.duration, report.outcome]
            file.write(json.dumps(row) + "\n")


def _note_since(context: str) -> None:
    """What runs in this process from now on, runs for this test."""
    import coverage

    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(context)


def record(data: Path, words: list[str]) -> int:
    """Run pytest under coverage in all processes; `coverage` and `notes.jsonl` are in `data`."""
    data.mkdir(parents=True)
    sources = "\n    ".join(str(ROOT / name) for name in SOURCES)
    (data / "coveragerc").write_text(CONFIG.format(data=data, sources=sources))
    environ = {**os.environ, "COVERAGE_PROCESS_START": str(data / "coveragerc")}
    environ[NOTES] = str(data / "notes.jsonl")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants", *words]
    code = subprocess.run(command, cwd=ROOT, env=environ).returncode
    combine = [sys.executable, "-m", "coverage", "combine", "-q", "--rcfile", data / "coveragerc"]
    subprocess.run(combine, cwd=ROOT, check=True)
    return code


class Tests:
    """Which tests run a line, and how long each takes."""

    def __init__(self, data: Path):
        from coverage import CoverageData

        self.coverage = CoverageData(str(data / "coverage"))
        self.coverage.read()
        self.seconds: dict[str, float] = defaultdict(float)
        failed = set()
        for line in (data / "notes.jsonl").read_text(encoding="utf-8").splitlines():
            name, _, seconds, outcome = json.loads(line)
            self.seconds[name] += seconds
            if outcome != "passed":
                failed.add(name)
        for name in failed:
            del self.seconds[name]
        self.of_file: dict[str, list[str]] = defaultdict(list)
        for name in self.seconds:
            self.of_file[name.partition("::")[0]].append(name)

    def lines(self, path: Path) -> dict[int, set[str]]:
        """For each line of a file the tests that run it. What a fixture runs, all tests of the file
        may notice."""
        found: dict[int, set[str]] = {}
        for line, contexts in self.coverage.contexts_by_lineno(str(path)).items():
            names: set[str] = set()
            for context in contexts:
                name, _, when = context.rpartition(" (")
                if when.startswith("setup"):
                    names.update(self.of_file[name.partition("::")[0]])
                elif name in self.seconds:
                    names.add(name)
            if names:
                found[line] = names
        return found

    def choose(self, names: set[str], budget: float) -> list[str]:
        """The quickest, as many as fit into the budget and at least one; a file's together."""
        chosen: list[str] = []
        left = budget
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            left -= self.seconds[name]
            if left < 0 and chosen:
                break
            chosen.append(name)
        order = {file: place for place, file in reversed(list(enumerate(map(_file, chosen))))}
        return sorted(chosen, key=lambda name: order[_file(name)])


def _file(name: str) -> str:
    return name.partition("::")[0]


def room(path: str) -> str:
    """`fleetbert/data`, `deploy/inference/ops`, or the file itself at the top of a package."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[0] == "deploy" else 2])


def changes(source: str) -> Iterator[tuple[int, str, str]]:
    """All single changes of a source: (line number, the line, the changed line)."""
    lines = source.split("\n")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for start, end, new in _edits(node, lines):
            (line, first), (last, stop) = start, end
            old = lines[line - 1]
            if line == last:
                whole = old.encode()  # columns count bytes
                changed = (whole[:first] + new.encode() + whole[stop:]).decode()
                if changed != old:
                    yield line, old, changed


def _edits(node: ast.AST, lines: list[str]) -> Iterator[tuple[Any, Any, str]]:
    """Replacements of a node's text: from (line, column) to (line, column), and by what."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for one, other in zip(sides, sides[1:]):
            yield from _operator(one, other, lines)
    elif isinstance(node, ast.BinOp):
        yield from _operator(node.left, node.right, lines)
    elif isinstance(node, ast.BoolOp):
        for one, other in zip(node.values, node.values[1:]):
            yield from _operator(one, other, lines)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield _start(node.test), _end(node.test), f"not ({_text(node.test, lines)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        new = not value if isinstance(value, bool) else value + 1 if value < 2 else value * 2
        yield _start(node), _end(node), repr(new)
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        one, other = node.args[:2]
        if not any(isinstance(each, (ast.Starred, ast.GeneratorExp)) for each in (one, other)):
            texts = _text(other, lines), _text(one, lines)
            yield _start(one), _end(other), ", ".join(texts)


def _operator(left: ast.expr, right: ast.expr, lines: list[str]) -> Iterator[tuple[Any, Any, str]]:
    (line, first), (last, stop) = _end(left), _start(right)
    between = lines[line - 1].encode()[first:stop].decode() if line == last else ""
    new = OPERATORS.get(between.strip())
    if new:
        yield (line, first), (last, stop), f" {new} "


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _text(node: ast.expr, lines: list[str]) -> str:
    """The source of what stands in one line; of other nodes no edit comes."""
    return lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()


def draw(tests: Tests, count: int, seed: int) -> list[dict[str, Any]]:
    """So many mutants, each of another line."""
    by_room: dict[str, list[tuple[str, int, str, str]]] = defaultdict(list)
    covered: Counter[str] = Counter()
    for name in SOURCES:
        for path in sorted((ROOT / name).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if path.name.endswith("_pb2.py"):
                continue
            lines, place = tests.lines(path), path.relative_to(ROOT).as_posix()
            covered[room(place)] += len(lines)
            for line, old, new in changes(source):
                if line in lines:
                    by_room[room(place)].append((place, line, old, new))
    generator = random.Random(seed)
    drawn: dict[tuple[str, int], dict[str, Any]] = {}
    rooms = [each for each in sorted(by_room) if by_room[each]]
    while len(drawn) < count:
        chosen = generator.choices(rooms, [covered[each] for each in rooms])[0]
        place, line, old, new = generator.choice(by_room[chosen])
        mutant = {"file": place, "line": line, "old": old, "new": new}
        drawn.setdefault((place, line), mutant)
    return sorted(drawn.values(), key=lambda mutant: (mutant["file"], mutant["line"]))


def find(mutant: dict[str, Any], source: str) -> int | None:
    """The number of its line today: that with the same text that is nearest to its old place."""
    same = [n for n, line in enumerate(source.split("\n"), 1) if line == mutant["old"]]
    return min(same, key=lambda n: abs(n - mutant["line"])) if same else None


class Copy:
    """A copy of the checkout with an environment of its own."""

    def __init__(self, folder: Path):
        self.root = folder
        if not folder.exists():
            subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
            for name in ("lite", "fp16sim"):  # what tests compiled
                if (ROOT / ".cache" / name).exists():
                    shutil.copytree(ROOT / ".cache" / name, folder / ".cache" / name)
            subprocess.run(["make", "-s", "venv"], cwd=folder, check=True)
        self.python = folder / ".venv" / "bin" / "python"

    def try_on(self, mutant: dict[str, Any], tests: Tests, marks: str, budget: float) -> dict:
        """The mutant with `result`: killed, lives, untested or gone."""
        path = self.root / mutant["file"]
        source = path.read_text(encoding="utf-8")
        line = find(mutant, source)
        if line is None:
            return {**mutant, "result": "gone"}
        names = tests.lines(ROOT / mutant["file"]).get(line, set())
        if not names:
            return {**mutant, "result": "untested"}
        chosen = self.root / ".cache" / "chosen.txt"
        chosen.parent.mkdir(exist_ok=True)
        chosen.write_text("\n".join(tests.choose(names, budget)))
        lines = source.split("\n")
        lines[line - 1] = mutant["new"]
        path.write_text("\n".join(lines), encoding="utf-8")
        command = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks]
        command += ["--timeout", "180", f"@{chosen}"]
        since = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=2 * budget + SLACK,
            )
            code, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, said = 1, "it hangs"
        finally:
            path.write_text(source, encoding="utf-8")
        result = {0: "lives", 5: "untested"}.get(code, "killed")
        by = re.search("^(?:FAILED|ERROR) ([^ ]+)", said, re.M)
        seconds = round(time.monotonic() - since)
        return {**mutant, "result": result, "by": by[1] if by else "", "seconds": seconds}


def run(data: Path, results: Path, marks: str, budget: float, copies: int) -> None:
    """Try all mutants of the list; one that stands in `results` is not tried again."""
    known = json.loads(results.read_text()) if results.exists() else []
    tried = {(each["file"], each["line"]) for each in known}
    left = [
        each for each in json.loads(LIST.read_text()) if (each["file"], each["line"]) not in tried
    ]
    folders = [data / f"copy-{number}" for number in range(copies)]
    free = [Copy(folder) for folder in folders]
    tests = [Tests(data) for _ in free]  # SQLite's connections belong to a thread

    def try_one(mutant: dict[str, Any]) -> dict[str, Any]:
        copy, own = free.pop(), tests.pop()
        try:
            return copy.try_on(mutant, own, marks, budget)
        finally:
            free.append(copy)
            tests.append(own)

    with ThreadPoolExecutor(copies) as pool:
        for result in pool.map(try_one, left):
            known.append(result)
            results.write_text(json.dumps(known, indent=1) + "\n")
            print(f"{result['result']:8} {result['file']}:{result['line']}", flush=True)
    print(Counter(each["result"] for each in known))


def table(paths: list[Path]) -> str:
    """For each room how many mutants each suite killed, then those that live, line by line."""
    suites = [json.loads(path.read_text()) for path in paths]
    heads = [path.stem for path in paths]
    killed = [
        Counter(room(x["file"]) for x in suite if x["result"] == "killed") for suite in suites
    ]
    drawn = Counter(room(each["file"]) for each in suites[0])
    rows = [f"| room | mutants | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for name in sorted(drawn):
        rows.append(f"| {name} | {drawn[name]} | {' | '.join(str(one[name]) for one in killed)} |")
    sums = " | ".join(str(sum(one.values())) for one in killed)
    return "\n".join([*rows, f"| all | {sum(drawn.values())} | {sums} |"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_record = verbs.add_parser("record", help="run the tests under coverage")
    of_draw = verbs.add_parser("draw", help="draw mutants of lines that tests run")
    of_run = verbs.add_parser("run", help="try each mutant on the tests of its line")
    for each in (of_record, of_draw, of_run):
        each.add_argument("data", type=lambda word: Path(word).resolve(), help="folder of `record`")
    of_draw.add_argument("--count", type=int, default=80)
    of_draw.add_argument("--seed", type=int, default=0)
    of_run.add_argument("results", type=Path, help="JSON to write; goes on where it ended")
    of_run.add_argument("--marks", default="not endurance", help="-m of pytest")
    of_run.add_argument("--budget", type=float, default=60, help="seconds of tests for a mutant")
    of_run.add_argument("--copies", type=int, default=2, help="of the checkout, at once")
    verbs.add_parser("table").add_argument("results", type=Path, nargs="+")
    options, words = parser.parse_known_args()
    if options.verb == "record":
        return record(options.data, words)
    if options.verb == "draw":
        mutants = draw(Tests(options.data), options.count, options.seed)
        LIST.write_text(json.dumps(mutants, indent=1) + "\n")
    elif options.verb == "run":
        run(options.data, options.results, options.marks, options.budget, options.copies)
    else:
        print(table(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
