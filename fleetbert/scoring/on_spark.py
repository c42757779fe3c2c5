"""The files of `predict` on a Spark cluster: each is a task, which an executor's Python answers."""

from __future__ import annotations

import os
import re
import shutil
import struct
import sys
from concurrent import futures
from contextlib import closing, suppress
from typing import Any, Generator, Sequence

from fleetbert.core.errors import UserError
from fleetbert.scoring import remote
from fleetbert.scoring.plan import Plan

POLL = 0.2  # seconds
# Spark's network protocol: length of the message, its type, its number, length of its body.
REQUEST = struct.Struct(">QB8sI")
RPC_REQUEST = 3
TLS_ALERT = b"\x15\x03"
MASTERS = r"local(\[.*\])?|local-cluster\[.*\]|(spark|k8s)://.+|yarn"


def run(
    plans: Sequence[Plan], address: str | None = None
) -> Generator[tuple[int, int], None, None]:
    """Answer the files on the cluster's executors.

    address: the master, such as `spark://host:port`, `yarn` or `local-cluster[2,1,2048]`. Default:
    that of spark-submit, else the processors of this machine. Raises UserError where it cannot be
    reached or a file fails.
    """
    if address is not None and not re.fullmatch(MASTERS, address):
        raise UserError(
            f"--address {address}: this is no master of Spark; say one such as spark://HOST:PORT, "
            "yarn or local-cluster[2,1,2048]"
        )
    if (address or "").startswith("spark://"):
        check_address(address or "")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UserError(
            "--on spark: Spark needs Java 17 or later, which is not installed; on Debian: "
            "apt install openjdk-17-jre-headless"
        )
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    # Else Spark takes the `python3` that it finds on a worker.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    threads = plans[0].scorer.threads or 1
    conf = SparkConf().setAppName("fleetbert predict").setIfMissing("spark.task.cpus", str(threads))
    conf.set("spark.ui.showConsoleProgress", "false")
    if address is not None:
        conf.setMaster(address)
    try:
        with SparkContext(conf=conf) as context:
            context.setLogLevel("ERROR")
            # This logger warns every 15 s that no executor takes the files.
            log4j = context._jvm.org.apache.logging.log4j
            scheduler = "org.apache.spark.scheduler.TaskSchedulerImpl"
            log4j.core.config.Configurator.setLevel(scheduler, log4j.Level.WARN)
            with closing(_outcomes(context, remote.pack(plans))) as outcomes:
                yield from remote.counted(plans, outcomes)
    except (Py4JError, PySparkException) as error:
        cause = remote.cause(error)
        if "JAVA_GATEWAY_EXITED" in cause or "stopped SparkContext" in cause:
            cause = "Spark ended before it took the files; its own lines above say why"
        raise UserError(f"--on spark: {cause}") from error


def check_address(address: str) -> None:
    """UserError where no master is at the address: Spark would try for a minute."""
    number = b"fleetber"
    answer = b""
    with remote.connect(address) as connection, suppress(OSError):
        connection.sendall(REQUEST.pack(REQUEST.size, RPC_REQUEST, number, 0))
        answer = remote.read(connection, REQUEST.size)
    # A master answers an empty request with an error; one with TLS, with an alert.
    if not (answer[9:17] == number or answer.startswith(TLS_ALERT)):
        raise UserError(
            f"--address {address}: what listens there is not a master of Spark; name the "
            "spark:// address that its log and its page show"
        )


def _outcomes(context: Any, work: list[bytes]) -> Generator[remote.Outcome, None, None]:
    """What became of each file, as soon as Spark knows it."""
    from py4j.protocol import Py4JError
    from pyspark.accumulators import AccumulatorParam

    class Lists(AccumulatorParam):
        def zero(self, _: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
            value1 += value2
            return value1

    answered = context.accumulator([], Lists())
    files = context.parallelize(work, len(work))
    with futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(files.foreach, lambda work: answered.add([remote.answer(work)]))
        try:
            seen = 0
            while True:
                is_last = futures.wait([job], POLL).done
                fresh = answered.value[seen:]
                seen += len(fresh)
                yield from fresh
                if is_last:
                    job.result()
                    return
        finally:
            with suppress(Py4JError):  # the first error is the one to show
                context.cancelAllJobs()
