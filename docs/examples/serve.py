"""Serve a bundle and ask the server from Python: see serve.md."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import fleetbert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="what training wrote, e.g. output/classify/bundle")
    parser.add_argument("text", nargs="+", help="texts to answer")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as repository:
        # A repository is a folder of models: MODEL/VERSION is a bundle, or a link to one.
        (Path(repository) / "mine").mkdir()
        (Path(repository) / "mine" / "1").symlink_to(Path(given.bundle).resolve())
        command = [sys.executable, "-m", "fleetbert.deploy.inference", "--repository", repository]
        ports = ["listen.http_port=0", "listen.grpc_port=0"]  # free ones
        with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()  # serving on http://127.0.0.1:PORT, grpc://...
                urls = [word.rstrip(",") for word in line.split() if word.startswith("http://")]
                if not server.stdout.readline():  # ready: mine (1)
                    raise SystemExit("the server did not start: its log is above")
                with fleetbert.Client(urls[0]) as client:
                    for text, answer in zip(given.text, client.infer("mine", given.text)):
                        print(f"{text} → {answer.label} ({answer.scores[answer.label]:.1%})")
            finally:
                server.send_signal(signal.SIGTERM)  # it answers what it has taken, then leaves


if __name__ == "__main__":
    main()
