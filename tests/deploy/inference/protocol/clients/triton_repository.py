"""tritonclient's calls of the repository, over http or grpc: `triton_repository.py http|grpc
HOST:PORT` prints what they did as JSON. The server has the models sst, and other, which is new."""

from __future__ import annotations

import json
import sys

PROTOCOL, ADDRESS = sys.argv[1:]
if PROTOCOL == "http":
    import tritonclient.http as triton
else:
    import tritonclient.grpc as triton

client = triton.InferenceServerClient(ADDRESS)


def states():
    """Of each model, in Triton's words, and whether it answers that it is ready."""
    index = client.get_model_repository_index(**({"as_json": True} if PROTOCOL == "grpc" else {}))
    models = index["models"] if PROTOCOL == "grpc" else index
    return {one["name"]: [one["state"], client.is_model_ready(one["name"])] for one in models}


def refusal(call):
    try:
        call()
    except triton.InferenceServerException as error:
        return error.message()
    return None


seen = [states()]
client.unload_model("sst")
seen.append(states())
client.load_model("other")
client.load_model("sst")
seen.append(states())
client.unload_model("other", unload_dependents=True)
seen.append(states())
refused = [
    refusal(lambda: client.load_model("nobody")),
    refusal(lambda: client.unload_model("nobody")),
    refusal(lambda: client.load_model("sst", config='{"name": "sst"}')),
    refusal(lambda: client.load_model("../sst")),
]
print(json.dumps({"seen": seen, "refused": refused, "after": states()}))
client.close()
