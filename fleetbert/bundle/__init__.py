"""The bundle: the folder that training hands over and that everything after it reads.

    manifest.json     format version; task, labels, max length; tokenizer; the list of variants
    vocab.txt
    float32/ ...      one folder for each variant: the same model in another form

Whoever reads sees a complete bundle, the old or the new one, whatever happens to the writer:
files are written to a temporary folder, forced to disk, and come into place by one rename.
"""
# ruff: noqa: F401  what the package offers

from fleetbert.bundle.manifest import (
    MANIFEST,
    VOCAB,
    Accuracy,
    BFloat16Variant,
    Clipped,
    Comparison,
    Drop,
    EarlyExitVariant,
    File,
    Golden,
    Int8Variant,
    LiteEarlyExitVariant,
    LiteVariant,
    OnnxInt8Variant,
    OnnxTried,
    OnnxVariant,
    OtherVariant,
    ProgramVariant,
    Pruning,
    Setting,
    Smoothed,
    SpeedPoint,
    Split,
    Task,
    TokenizerSpec,
    Variant,
    WeightOnlyVariant,
)
from fleetbert.bundle.read import Bundle, PathLike, read, verify
from fleetbert.bundle.write import add_variant, adding, create, replacing, writing
