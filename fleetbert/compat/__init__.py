"""What a version of Paddle needs: each workaround with its bug and version, in this one room.

What Paddle does where another room goes its own way instead, and the version that was seen to:

| Paddle | does | so |
|---|---|---|
| 2.6.2 | int8 passes scale weights along the wrong axis: 21 to 40 % error | graph.int8 |
| 2.6.2 | rewrites parameters into oneDNN's layout in every run | graph.layouts |
| 2.6.2 | bfloat16 passes take norms and sums too, and know no packed rows | graph.bfloat16 |
| 2.6.2 | ends saved programs with no-op scales; constants of shape [] | graph.tidy |
| 2.6.2 | passes crash at a constant that nothing reads | graph.padding |
| 2.6.2, 3.3.1 | many CPU kernels for training are slow, and run on one thread | models.fused |
| 2.6.2 | AdamW's CPU kernel takes 1.6 times as long as oneDNN's primitives | adamw |
| 2.6.2 | clipping computes the gradients' norm and keeps it to itself | training.optimizer |
| 2.6.2 | AMP runs float32 on devices that lack a type | training.precision |
| 2.6.2 | a DataLoader forks with threads' locks; workers outlive a killed rank | training.reader |
| 2.6.2 | CINN knows no open dimensions | training.compiled |
| 2.6.2 | `client_flush` sleeps 0.1 s and hopes that pushes arrived | parameter_server.arrival |
| 2.6.2 | a row's first push only makes room, `NeedExtendMF` | parameter_server.tables |
| 2.6.2 | with Gloo, saving on one trainer times out | parameter_server.rendezvous |
| 2.6.2 | a trainer retries each pull for 300 s, and goes on | parameter_server.watch |
| 2.6.2 | `--max_restart` restarts only with an etcd server as `--master` | launch.ranks |
| 2.6.2 | `--run_mode ps` sets these variables (launch/controllers/ps.py) | launch.cluster |
| 2.6.2 | the teardown of its libraries aborts now and then | core.errors |
| 2.6.2, 3.3.1 | its import imports httpx and setuptools, which nothing here uses | deferred |
| 2.6.2, 3.3.1 | its import puts a handler of SIGTERM in place that shows a stack | signals |
| 2.6.2, 3.3.1 | importing paddle.distributed gives the root logger a handler | core.log |
| PaddleSlim 2.6.0 | calls the classes of Paddle that compression.* call | compression |
"""
