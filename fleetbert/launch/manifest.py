"""What a cluster manager runs a collective job by: a file that people read, change and submit."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple, Sequence

from fleetbert.core import extras
from fleetbert.core.errors import UserError

FOLDER = Path(__file__).parent / "manifests"
# The template of each manager. Jobs of all but Slurm run in an image, with a volume at MOUNT.
KINDS = {
    "slurm": "slurm.sh.j2",
    "kubernetes": "kubernetes.yaml.j2",
    "jobset": "jobset.yaml.j2",
    "paddlejob": "paddlejob.yaml.j2",
}
MOUNT = "/data"
NAME_LENGTH = 40  # characters: managers append numbers, and 63 is the limit of a host's name


class Job(NamedTuple):
    """nodes: machines; ranks: of each; restarts: of the ranks after a failure; command: the script
    and its arguments; output_dir: the job's, or "" where the script is not fleetbert's."""

    nodes: int
    ranks: int
    restarts: int
    image: str
    command: Sequence[str]
    output_dir: str = ""


def manifest(kind: str, job: Job) -> str:
    """The file that submits `job` to the manager `kind`, of KINDS. UserError where the results
    would be lost with the container."""
    extras.need("train", "launch --print")
    import jinja2

    folder = job.output_dir
    if kind != "slurm" and folder and not folder.startswith(MOUNT + "/"):
        raise UserError(
            f"output_dir: {folder} ends with its container; the volume that all pods share is at "
            f"{MOUNT}, so say output_dir={MOUNT}/{Path(folder).name}"
        )
    name = re.sub("[^a-z0-9]+", "-", Path(folder).name.lower()).strip("-")[:NAME_LENGTH]
    # A name of Kubernetes begins with a letter and ends with none but a letter or a digit.
    name = name if name[:1].isalpha() else f"fleetbert-{name}"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(FOLDER)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["words"] = shlex.join
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.get_template(KINDS[kind])
    return template.render(job._asdict(), name=name.strip("-"), mount=MOUNT)
