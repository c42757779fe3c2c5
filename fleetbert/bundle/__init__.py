"""The bundle: the folder that training hands over and that everything after it reads.

    manifest.json     format version; task, labels, max length; tokenizer; the list of variants
    vocab.txt
    float32/ ...      one folder for each variant: the same model in another form

Whoever reads sees a complete bundle, the old or the new one, whatever happens to the writer:
files are written to a temporary folder, forced to disk, and come into place by one rename.
"""
# ruff: noqa: F401  what the package offers

from fleetbert.bundle.evidence import (
    Accuracy,
    Comparison,
    Drop,
    Golden,
    OnnxTried,
    Pruning,
    Smoothed,
    SpeedPoint,
    Split,
)
from fleetbert.bundle.manifest import MANIFEST, Setting, Task, TokenizerSpec
from fleetbert.bundle.read import Bundle, read, verify
from fleetbert.bundle.variants import (
    BFloat16Variant,
    EarlyExitVariant,
    File,
    Int8Variant,
    LiteEarlyExitVariant,
    LiteVariant,
    OnnxInt8Variant,
    OnnxVariant,
    OtherVariant,
    ProgramVariant,
    TableVariant,
    Variant,
    WeightOnlyVariant,
)
from fleetbert.bundle.write import (
    add_variant,
    adding,
    check_replaceable,
    create,
    replacing,
    writing,
)
