"""`fleetbert predict --on ray` and `--on spark`, in the environment of `make venv-cluster`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import commands
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running_core import wait_for

import fleetbert

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-cluster" / "bin"
FILES, ROWS = 8, 3000
# A word of the command lines of each engine's workers.
WORKERS = {"ray": "ray::MapWorker", "spark": "CoarseGrainedExecutorBackend"}
ADDRESS = {"ray": (), "spark": ("--address", "local-cluster[2,1,2048]")}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BIN.exists(), reason="no .venv-cluster here: run `make venv-cluster`"),
]
needs_java = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java here: apt install openjdk-17-jre-headless"
)
engines = pytest.mark.parametrize("engine", ["ray", pytest.param("spark", marks=needs_java)])


@contextlib.contextmanager
def started(log: Path, *command: object, **environ: str):
    """A process that writes to `log`, and in the end none of those that it started."""
    ours = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's 15 would wait for every other test
        "SPARK_LOCAL_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as stream:
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, **ours, **environ},
            stdout=stream,
            stderr=stream,
        )
    try:
        yield process
    finally:
        for one in [*descendants(process.pid), process]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers(pid: int, engine: str) -> list[psutil.Process]:
    found = []
    for child in descendants(pid):
        with contextlib.suppress(psutil.Error):
            if WORKERS[engine] in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.fixture
def texts(tmp_path):
    """Files of ROWS rows; the first has a row without a text."""
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        words = [f"word{row % 30}" if row else None for row in ids]
        path = tmp_path / "in" / f"n={number % 2}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": ids, "text": words}), path)
    return tmp_path / "in"


@pytest.fixture
def words(tiny_bundle, texts, tmp_path):
    """Of `predict` from `texts` to tmp_path/out."""
    places = ["--bundle", tiny_bundle, "--input", texts, "--output", tmp_path / "out"]
    return ["predict", *places, "--keep", "id"]


@engines
def test_a_worker_is_killed_and_each_row_is_there_once(engine, words, tmp_path, capsys):
    out = tmp_path / "out"
    command = [BIN / "fleetbert", *words, "--on", engine, *ADDRESS[engine]]
    with started(tmp_path / "log", *command) as process:
        wait_for(lambda: list(out.glob("*/*.parquet")) or process.poll() is not None, "a file")
        both = wait_for(
            lambda: len(workers(process.pid, engine)) == 2 and workers(process.pid, engine)
        )
        both[0].kill()
        assert len(list(out.glob("*/*.parquet"))) < FILES
        assert process.wait() == 0, (tmp_path / "log").read_text()
    output = (tmp_path / "log").read_text()
    assert f"{FILES * ROWS} rows of {FILES} files answered" in output
    assert "1 rows could not be answered" in output
    assert sorted(pq.read_table(out)["id"].to_pylist()) == list(range(1, FILES * ROWS))
    faults = (out / "_errors" / "n=0" / "0.jsonl").read_text().splitlines()
    assert [json.loads(fault)["row"] for fault in faults] == [0]
    assert not list(out.rglob(".*"))
    # One process takes it for its own.
    assert commands.call(*map(str, words)) == 0
    assert f"0 rows of 0 files answered in {out}; {FILES} files were" in capsys.readouterr().err


@engines
@pytest.mark.parametrize("fault", ["damaged", "threads"])
def test_a_fault_is_one_sentence(engine, fault, words, texts, tmp_path):
    if fault == "damaged":
        path = texts / "n=1" / "7.parquet"
        content = bytearray(path.read_bytes())
        content[4:100] = bytes(96)  # of the first page; the footer is whole
        path.write_bytes(content)
        sentence = f"{path} cannot be read: "
    else:
        words += ["--threads", "99"]
        sentence = {"ray": "--threads 99: the machines", "spark": "cpus per task = 99"}[engine]
    command = [BIN / "fleetbert", *words, "--on", engine, *ADDRESS[engine]]
    with started(tmp_path / "log", *command) as process:
        assert process.wait() == 2
    output = (tmp_path / "log").read_text()
    [error] = [line for line in output.splitlines() if line.startswith("error: ")]
    assert sentence in error and "Traceback" not in output, output
    assert not list((tmp_path / "out").rglob("*.part"))


@needs_java
def test_running_clusters_are_known_by_their_addresses(tmp_path):
    spark = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
    home = subprocess.run([BIN / "python", "-c", spark], capture_output=True, text=True).stdout
    words = ["--host", "127.0.0.1", "--port", 0, "--webui-port", 0]
    master = [Path(home.strip(), "bin", "spark-class"), "org.apache.spark.deploy.master.Master"]
    with started(tmp_path / "log", *master, *words, SPARK_HOME=home.strip()):
        found = wait_for(
            lambda: re.search(r"spark://127\.0\.0\.1:\d+", (tmp_path / "log").read_text()),
            "a master",
        )
        code = (
            "import ray, sys\nfrom fleetbert.scoring import on_ray, on_spark\n"
            "on_spark.check_address(sys.argv[1])\nray.init(num_cpus=1)\n"
            "on_ray.check_address(ray.get_runtime_context().gcs_address)\n"
        )
        with started(tmp_path / "ray.log", BIN / "python", "-c", code, found[0]) as process:
            assert process.wait() == 0, (tmp_path / "ray.log").read_text()


# What runs a block of docs/tables.md, on two workers, and prints its rows.
RAY = """
import fleetbert, ray, ray.data
ray.init(num_cpus=3, log_to_driver=False)  # two for the actors, one for repartition
dataset = ray.data.from_arrow(pa.Table.from_pylist(ROWS)).repartition(4)
BLOCK
answered = answered.to_pandas()
"""
SPARK = """
import fleetbert
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf
spark = SparkSession.builder.master("local-cluster[2,1,1024]").getOrCreate()
rows = spark.createDataFrame(pd.DataFrame(ROWS)).repartition(4)
BLOCK
answered = answered.toPandas()
"""


@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("map_batches", RAY),
        pytest.param("pandas_udf", SPARK, marks=needs_java),
        pytest.param("mapInArrow", SPARK, marks=needs_java),
    ],
)
def test_code_of_the_guide_answers_a_dataset(word, script, tiny_bundle, tmp_path):
    guide = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    [block] = [block for block in re.findall("```python\n(.*?)```", guide, re.S) if word in block]
    block = block.replace('"output/sst2/bundle", "int8-static"', f"{str(tiny_bundle)!r}, 'float32'")
    rows = [{"id": number, "text": f"word{number % 30}"} for number in range(200)]
    if word != "map_batches":  # which stops at a row without a text
        rows[7]["text"] = None
    head = f"import pandas as pd, pyarrow as pa\nROWS = {rows}\n"
    tail = f"answered.to_json({str(tmp_path / 'rows.json')!r}, orient='records')\n"
    (tmp_path / "script.py").write_text(head + script.replace("BLOCK", block) + tail)
    python = str(BIN / "python")
    command = [python, tmp_path / "script.py"]
    with started(tmp_path / "log", *command, PYSPARK_PYTHON=python) as process:
        assert process.wait() == 0, (tmp_path / "log").read_text()
    answered = sorted(json.loads((tmp_path / "rows.json").read_text()), key=lambda row: row["id"])
    assert [row["id"] for row in answered] == [row["id"] for row in rows]
    expected = fleetbert.Scorer(tiny_bundle, on_bad_row="null")(pa.Table.from_pylist(rows))
    for row, label, scores in zip(
        answered,
        expected["predicted_label"].to_pylist(),
        expected["predicted_scores"].to_pylist(),
    ):
        assert row["predicted_label"] == label
        assert row["predicted_scores"] == (scores and pytest.approx(scores, abs=1e-5))
