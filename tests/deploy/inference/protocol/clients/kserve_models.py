"""KServe's own classes of its resources: `kserve_models.py FILE` prints, as JSON, what of the
file's documents they do not accept. What is of Kubernetes' classes is left out: it has schemas."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path

import kserve.models
import yaml

PLAIN = {"str": str, "int": int, "bool": bool}


def faults(value, kind, where):
    """Sentences about a value that is to be of `kind`, in the words of KServe's classes."""
    inner = re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", kind)
    if inner:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [fault for key, v in items for fault in faults(v, inner[1], f"{where}.{key}")]
    if kind in PLAIN:
        return [] if isinstance(value, PLAIN[kind]) else [f"{where} is no {kind}"]
    model = getattr(kserve.models, kind, None)
    if model is None:
        return []
    try:
        model(**{name: value.get(key) for name, key in model.attribute_map.items()})
    except ValueError as error:  # something is missing
        return [f"{where}: {error}"]
    kinds = {model.attribute_map[name]: one for name, one in model.openapi_types.items()}
    unknown = [f"{where}.{key} is unknown" for key in value if key not in kinds]
    known = (faults(value[key], kinds[key], f"{where}.{key}") for key in value if key in kinds)
    return [*unknown, *itertools.chain(*known)]


documents = list(yaml.safe_load_all(Path(sys.argv[1]).read_text(encoding="utf-8")))
kinds = [one["apiVersion"].rpartition("/")[2].capitalize() + one["kind"] for one in documents]
assert all(hasattr(kserve.models, kind) for kind in kinds), kinds
found = [faults(document, kind, kind) for document, kind in zip(documents, kinds)]
print(json.dumps([*itertools.chain(*found)]))
