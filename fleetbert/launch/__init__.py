"""Starts the processes of a job and supervises them; nothing here imports Paddle.

`policy` says what the end of a process means and whether the job starts again. Two adapters follow
it: `ranks` below Paddle's collective launcher, `servers` for parameter-server jobs.
"""
