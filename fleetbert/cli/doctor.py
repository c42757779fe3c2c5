"""The command line of `fleetbert doctor`."""

from __future__ import annotations

import argparse
import json

from fleetbert.doctor.findings import Finding

DESCRIPTION = """\
Look at this machine and try its main features, in about two minutes: versions, processors, cards,
limits and folders; then train a tiny BERT, on two ranks too, quantize and export it, answer in
every variant, start a server and ask it. Nothing is left behind.

  fleetbert doctor
  fleetbert doctor --json > doctor.json     # for an issue, most welcome from owners of GPUs

Exit code 0: nothing is broken; 2: something is, and the table says what to do.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-run", action="store_true", help="look at the machine only, which takes no time"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Return the exit code: 2 if something is broken."""
    from fleetbert.doctor import trial  # `fleetbert --help` needs none of it

    findings = []
    for finding in trial.examine(not arguments.no_run):
        findings.append(finding)
        if not arguments.json:
            show(finding)
    if arguments.json:
        print(json.dumps([item._asdict() for item in findings], indent=1, ensure_ascii=False))
    broken = [finding.check for finding in findings if finding.state == "broken"]
    if not arguments.json:
        print(f"\nbroken: {', '.join(broken)}" if broken else "\nnothing is broken")
    return 2 if broken else 0


def show(finding: Finding) -> None:
    print(f"{finding.state:<9} {finding.check:<17} {finding.observed}", flush=True)
    if finding.remedy:
        print(f"{'':<27} → {finding.remedy}", flush=True)
