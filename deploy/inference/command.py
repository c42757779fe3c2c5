"""The command line of `fleetbert serve`; light to import."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from fleetbert import config
from fleetbert.config.command_line import add_keys
from fleetbert.core import extras
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference import settings
from fleetbert.deploy.inference.ops import output
from fleetbert.deploy.inference.workers import process

DESCRIPTION = """\
Answer over HTTP and gRPC (the Open Inference Protocol v2), with a page for people at /.

  fleetbert serve --repository models
  fleetbert serve --repository output/sst2/bundle
  fleetbert serve --repository models --config configs/serve/x86.yaml batching.max_wait_ms=5

The repository is a folder of models, in which MODEL/VERSION/ is a bundle, e.g. models/sst2/1, or it
is a bundle itself. Changes in it are noticed while the server runs. Words key=value change the
config, or stand instead of one; configs/serve/x86.yaml has every key. At SIGTERM the server answers
the requests that it has accepted, and exits with 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repository", metavar="DIR", help="folder of models, or a bundle (repository.path)"
    )
    parser.add_argument("--name", metavar="MODEL", help="name of the bundle (repository.name)")
    parser.add_argument("--config", metavar="FILE", help="YAML file of the server")
    parser.add_argument("--http-port", type=int, metavar="N", help="listen.http_port (8000)")
    parser.add_argument("--grpc-port", type=int, metavar="N", help="listen.grpc_port (8001)")
    add_keys(parser, {"serve": settings.Serve})


def read(arguments: argparse.Namespace) -> settings.Serve:
    """The settings that a command line asks for; UserError where they are wrong."""
    given = {
        "repository.path": arguments.repository,
        "repository.name": arguments.name,
        "listen.http_port": arguments.http_port,
        "listen.grpc_port": arguments.grpc_port,
    }
    words = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    # Without a file every key has its default.
    return config.load_as(
        settings.Serve, arguments.config or os.devnull, [*words, *arguments.overrides]
    )


def run(arguments: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    extras.need("serve", "the server")
    section = read(arguments)
    _check_repository(section.repository)
    output.start()  # before the workers, which inherit it
    process.start_early(section.engine)
    import uvloop

    from fleetbert.deploy.inference import server
    from fleetbert.deploy.inference.repository.repository import Repository

    # The processors are the workers': threads that tokenize beside them cost more than they save.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    uvloop.run(server.serve(section, Repository))


def _check_repository(repository: settings.Repository) -> None:
    """UserError unless it holds a model: a server that waits for one looks like one that works."""
    path, name = Path(repository.path), repository.model()
    if not path.is_dir():
        raise UserError(
            f"repository {path} is no folder; name one that holds MODEL/VERSION/ bundles "
            "(--repository, or repository.path)"
        )
    if name is not None:
        if settings.MODEL_NAME.fullmatch(name):
            return
        raise UserError(
            f"{name!r} is no name of a model; give {path} one of letters, digits, '.', '_' and '-' "
            "with --name"
        )
    if repository.name is not None:
        raise UserError(
            f"--name {repository.name} is the name of a bundle, but there is no "
            f"{path}/{settings.MANIFESTS[0]}; name the bundle's folder with --repository, or leave "
            "out --name to serve a folder of models"
        )
    manifests = [
        p.relative_to(path) for name in settings.MANIFESTS for p in path.glob(f"[!.]*/[!.]*/{name}")
    ]
    if any(settings.VERSION_NAME.fullmatch(manifest.parts[1]) for manifest in manifests):
        return
    if manifests:
        name, version = manifests[0].parts[:2]
        raise UserError(
            f"repository {path} holds no model: {name}/{version} is not named like a version; "
            f"rename it to a number without zeros before it, e.g. {name}/1"
        )
    raise UserError(
        f"repository {path} holds no model: copy a bundle to {path}/MODEL/1 (its manifest.json "
        "is then MODEL/1/manifest.json)"
    )
