"""Trainers and servers: the weights lie on servers, each trainer pulls, computes and pushes.

A trainer's step is that of `Single` on its share of the batch: forward, backward, clipping, the
job's optimizer, all here. What the weights have changed by is pushed, and the servers add it:

- async (Downpour, Dean et al. 2012): after each step, all of it, without waiting for others. The
  word table's rows are pulled before each step, the other weights after every `pull_every`.
- sync: after each step, a trainer's part of the mean; then all wait, and pull. With SGD that is
  the step of the whole batch; AdamW's steps, each of a trainer's own gradients, are averaged.
- geo (GEO-SGD of Paddle): after every `k_steps` steps, a trainer's part of the mean, then a pull.

Before evaluations and checkpoints all trainers push what they have, wait, and pull everything.
"""
