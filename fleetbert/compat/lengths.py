"""Row lengths that are safe with oneDNN's primitive cache; imports no Paddle."""

from __future__ import annotations

# Row lengths that a predictor may run in any order. oneDNN's primitive cache (Paddle 2.6.2 and
# 3.1.1) joins the digits of a shape to a key with nothing between them, so that (1, 139) and
# (11, 39) meet, and the second fails or answers wrong. Among these lengths no two-digit one is
# the tail of a three-digit one: no number of rows makes two keys equal. Padding is a twentieth of
# the tokens on average beyond 20. A token costs about the same at every length, but not in a row
# alone of twice a large prime: 142 tokens took BERT-base longer in int8 than 160.
SAFE_LENGTHS = (
    *(7, 10, 14, 16, 18, 20, 22, 24, 26, 30, 32, 34, 36, 40, 44, 48, 52, 58, 64, 72, 80, 88, 96),
    *(104, 112, 128, 138, 150, 160, 176, 192, 212, 228, 256, 284, 312, 342, 384, 428, 468, 512),
)
