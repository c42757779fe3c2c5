"""What the parameter server needs of Paddle 2.6.2 that has no public name, and ways round its bugs.

Fleet knows servers in static programs only. The network here stays as it is in every strategy, so
the program that Fleet is given computes nothing: it holds one vector (all dense weights) and one
`sparse_embedding` (the word table), whose gradients are fed. Of what Fleet makes of it three
operators are left, each run alone: pull rows, push rows, push the vector.

The servers' optimizer is SGD at a rate of 1: they add what trainers push, and trainers compute the
steps with the job's own optimizer. Paddle's server-side Adam is wrong: its dense table
multiplies the beta powers once for each of 10 pool threads (`memory_dense_table.cc`), so that
after n steps the bias correction is that of 10 n and early steps are up to 2.6 times too long;
its betas and epsilon are compiled in (`depends/dense.h`); and a table's rate cannot change.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
import time
import warnings
from typing import Any, Iterator

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
from paddle.distributed import fleet
from paddle.distributed.ps.utils.public import get_the_one_recv_context

from fleetbert.compat.static_graph import static_graph

DENSE, ROWS = "fleetbert_dense", "fleetbert_rows"

# brpc refuses messages of more (`-max_body_size` in wrapper/fleet.cc), and the vector is one for
# each server.
LARGEST_MESSAGE = 314217728

# Left alone, Paddle's client waits for twelve pushes of the vector and sends them as one, and looks
# every 10 ms (brpc_ps_client.cc). The last two are what `FleetWrapper::InitGFlag` sets otherwise.
_FLAGS = (
    'init_gflags: "-pserver_push_dense_merge_limit=0 -pserver_push_sparse_merge_limit=0 '
    "-pserver_async_push_dense_interval_ms=1 -pserver_async_push_sparse_interval_ms=1 "
    f'-max_body_size={LARGEST_MESSAGE} -socket_max_unwritten_bytes=2048000000"'
)

STAT_LIMIT = 1.0  # seconds for the servers' number of rows to be written

_ATTRIBUTES = {  # of the operators that are kept; all else is of the compiler
    "distributed_lookup_table": ("table_id", "padding_idx", "is_distributed", "is_test"),
    "distributed_push_sparse": ("table_id", "padding_idx", "size", "is_distributed", "is_test"),
    "send": ("table_id", "is_sparse", "send_varnames"),
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep back what Fleet prints of its insides, unless it fails."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except BaseException:
        print(output.getvalue(), file=sys.stderr)
        raise


class Fleet:
    """The tables as Fleet sees them, in a server or in a trainer.

    dense: numbers in the vector. rows, width: shape of the word table, or 0, 0 without one.
    shards: parts of the word table, on all servers together. entry: of a table of ids, at how
    much in its first column a row gets room for the others; 0 for words, at its first push.
    """

    def __init__(self, dense: int, rows: int, width: int, shards: int, entry: int = 0):
        self.dense, self.rows, self.width, self.entry = dense, rows, width, entry
        with static_graph(), quiet():
            fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
            self.main = self._program(shards)

    def _program(self, shards: int) -> paddle.static.Program:
        self.startup = paddle.static.Program()
        with paddle.static.program_guard(paddle.static.Program(), self.startup):
            zero = paddle.nn.initializer.Constant(0.0)
            vector = paddle.static.create_parameter(
                [self.dense], "float32", name=DENSE, default_initializer=zero
            )
            fed = paddle.static.data("fed_dense", [self.dense], "float32")
            loss = (vector * fed).sum()  # whose gradient is what is fed
            strategy = fleet.DistributedStrategy()
            strategy.a_sync = True  # `sync` lies in the order of pushes and pulls
            if self.rows:
                ids = paddle.static.data("ids", [None, 1], "int64")  # no other shape is taken
                looked_up = paddle.static.nn.sparse_embedding(
                    ids,
                    size=[self.rows, self.width],
                    padding_idx=self.rows,  # fills up pushes; no word has it
                    param_attr=paddle.ParamAttr(name=ROWS, initializer=zero),
                )
                fed_rows = paddle.static.data("fed_rows", [None, self.width], "float32")
                loss = loss + (paddle.reshape(looked_up, [-1, self.width]) * fed_rows).sum()
                strategy.sparse_table_configs = {ROWS: _table(shards, self.entry)}
            optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(1.0), strategy)
            optimizer.minimize(loss)
            # Fleet makes another program the default one.
            self.startup = paddle.static.default_startup_program()
            return paddle.static.default_main_program()

    def serve(self) -> None:
        """Be a server until a trainer stops it."""
        with static_graph():
            with quiet():
                fleet.init_server()
            fleet.run_server()

    def connect(self) -> None:
        """Be a trainer. The servers must listen already: Fleet would wait for ever."""
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with static_graph(), quiet():
            self.executor.run(self.startup)
            runtime = fleet.fleet._runtime_handle
            describe = runtime.ps_desc_builder.build_worker_desc
            runtime.ps_desc_builder.build_worker_desc = lambda: f"{_FLAGS}\n{describe()}"
            # Or trainer 0 would make the servers' vector zeros, also when it is started again.
            os.environ["TEST_MODE"] = "1"
            fleet.init_worker()
            self.worker = runtime._worker
            contexts = get_the_one_recv_context(runtime.context, split_dense_table=False)
            self.dense_table = next(iter(contexts))
            self._push_dense = self._alone("send")
            if self.rows:
                self._pull_rows = self._alone("distributed_lookup_table")
                self._push_rows = self._alone("distributed_push_sparse")
        self.vector = paddle.static.global_scope().find_var(DENSE).get_tensor()

    def _alone(self, kind: str) -> tuple[paddle.static.Program, Any]:
        """A program with nothing but the one operator of that kind; and the operator."""
        former = self.main.global_block()
        (original,) = [op for op in former.ops if op.type == kind]
        program = paddle.static.Program()
        block = program.global_block()
        for name in {*original.input_arg_names, *original.output_arg_names}:
            if former.has_var(name):
                block._clone_variable(former.var(name), False)
        attributes = {name: original.attr(name) for name in _ATTRIBUTES[kind]}
        if kind == "distributed_push_sparse":
            attributes["slots"] = [0]  # which the operator checks, and its own description lacks
        operator = block.append_op(
            type=kind,
            inputs={name: original.input(name) for name in original.input_names},
            outputs={name: original.output(name) for name in original.output_names},
            attrs=attributes,
        )
        return program, operator

    def pull_rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows (ids, width) float32 of int64 ids."""
        program, operator = self._pull_rows
        with static_graph():
            (rows,) = self.executor.run(
                program, {"ids": ids.reshape(-1, 1)}, [operator.output("Outputs")[0]]
            )
        return rows

    def push_rows(self, ids: np.ndarray, gradient: np.ndarray) -> None:
        """Have the servers subtract `gradient` (ids, width) from rows, each there once.

        Paddle multiplies it by the number of ids (`PushSparseFromTensorAsync`), so it is divided
        by that first, which is a power of two and costs no digit.
        """
        program, operator = self._push_rows
        count = 1 << max(0, len(ids) - 1).bit_length()
        filled = np.full((count, 1), self.rows, np.int64)
        filled[: len(ids), 0] = ids
        divided = np.zeros((count, self.width), np.float32)
        divided[: len(ids)] = gradient / np.float32(count)
        shows = np.ones((count, 1), np.float32)
        if self.entry:  # so that Paddle counts, before it makes room, what the first column counts
            shows[:] = 0
            shows[: len(ids), 0] = -gradient[:, 0]
        feed = {"ids": filled, operator.output("Outputs")[0]: divided}
        feed[operator.input("Shows")[0]] = shows
        feed[operator.input("Clicks")[0]] = np.zeros_like(shows) if self.entry else shows
        with static_graph():
            self.executor.run(program, feed)

    def push_dense(self, gradient: np.ndarray) -> None:
        """Have the servers subtract `gradient` (dense,) from the vector."""
        program, operator = self._push_dense
        with static_graph():
            self.executor.run(program, {operator.input("X")[0]: gradient})

    def set_dense(self, values: np.ndarray) -> None:
        """Make the servers' vector `values` (dense,)."""
        self.vector.set(values, paddle.CPUPlace())
        self.worker.push_dense_params(paddle.static.global_scope(), self.dense_table, [DENSE])

    def pull_dense(self) -> np.ndarray:
        self.worker.pull_dense_params(paddle.static.global_scope(), self.dense_table, [DENSE])
        return np.array(self.vector)

    def count_rows(self) -> int | None:
        """Rows of the word table on all servers; None if they do not answer.

        Paddle's client writes the number to stdout, a moment after the call has returned.
        """
        _, operator = self._pull_rows
        sys.stdout.flush()
        read, write = os.pipe()
        kept = os.dup(1)
        os.dup2(write, 1)
        try:
            os.close(write)
            self.worker.sparse_table_stat(operator.attr("table_id"))
            text = _first_line(read, STAT_LIMIT)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            os.close(read)
        match = re.search(rb"feasign size: (\d+)", text)
        return int(match[1]) if match else None

    def stop_servers(self) -> None:
        self.worker.stop_server()


def _first_line(descriptor: int, seconds: float) -> bytes:
    """What is read up to the end of a line, or in that time."""
    text, until = b"", time.monotonic() + seconds
    while (
        b"\n" not in text
        and select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]
    ):
        text += os.read(descriptor, 4096)
    return text


def _table(shards: int, entry: int) -> dict[str, Any]:
    """The servers' settings of the word table: rows start as zeros, and what is pushed is added.

    `paddle.distributed.CountFilterEntry` and `ProbabilityEntry` do nothing on these servers: 2.6.2
    carries them along (`entry` of the table's description) and reads them nowhere. But a row whose
    score is below `embedx_threshold` has its first column only, and here the score is the shows.

    The name of the rule must be given: without one, Paddle takes Adam for whatever is no Adam
    (`the_one_ps.py`, a missing `el`). Its usual bounds cut weights at 10.
    """
    prefix = f"table_parameters.{ROWS}."
    settings: dict[str, Any] = {
        prefix + "shard_num": shards,
        prefix + "accessor.ctr_accessor_param.zero_init": False,
        prefix + "accessor.embedx_threshold": entry,
        prefix + "accessor.ctr_accessor_param.nonclk_coeff": 1.0,
    }
    for part in ("embed_sgd_param", "embedx_sgd_param"):  # the first column, the others
        rule = f"{prefix}accessor.{part}."
        settings[rule + "name"] = "SparseNaiveSGDRule"
        settings[rule + "naive.learning_rate"] = 1.0
        settings[rule + "naive.initial_range"] = 0.0
        settings[rule + "naive.weight_bounds"] = [-1e30, 1e30]
    return settings
