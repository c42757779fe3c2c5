"""The command line of `fleetbert doctor`."""

from __future__ import annotations

import argparse
import json

from fleetbert.doctor.findings import Finding

DESCRIPTION = """\
Check this machine and try its main features, in about two minutes. The checks are of versions,
processors, GPUs, limits and folders. The trial trains a tiny BERT (also in two ranks), quantizes
and exports it, answers with every variant, and queries a server over HTTP and gRPC. Where there is
a GPU, every engine for GPUs answers on it and is compared with the CPU, a server too. --all also
tries quantization-aware training, Paddle Lite and parameter servers. It leaves no files behind.

  fleetbert doctor
  fleetbert doctor --all
  fleetbert doctor --json > doctor.json     # to attach to an issue, above all if you have a GPU

The exit code is 0 if nothing is broken. It is 2 otherwise; the table then says what to do.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="check the machine without the trial, which takes a second",
    )
    parser.add_argument(
        "--all", action="store_true", help="try what takes longer too, about two minutes more"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Return the exit code: 2 if something is broken."""
    from fleetbert.doctor import trial  # `fleetbert --help` needs none of it

    findings = []
    for finding in trial.examine(not arguments.no_run, arguments.all):
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
