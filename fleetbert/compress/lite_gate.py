"""The gate of a variant for Paddle Lite: what of it runs here, beside float32."""

from __future__ import annotations

from pathlib import Path

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress.gate import Gate
from fleetbert.core.errors import GateFailed
from fleetbert.engines import engine


def measure(
    settings: config.Gate, bundle: bundles.Bundle, name: str, folder: Path, kind: str
) -> bundles.Accuracy:
    """The accuracy of the files in `folder`, of this kind of variant; GateFailed if too much is
    lost. name: of the variant that they will be."""
    gate = Gate(bundle, settings, key="--max-accuracy-drop")
    pad_id = gate.model.tokenizer.pad_id
    opened = engine.open_folder(kind, folder, "cpu", gate.threads, pad_id=pad_id)
    accuracy = gate.accuracy(gate.logits(opened))
    refused = gate.refusal(name, accuracy, "try another --precision")
    if refused is not None:
        raise GateFailed(refused)
    return accuracy
