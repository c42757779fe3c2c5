"""OpenAI's client at a server of ours; what it saw, as JSON. Argument: http://host:port/v1"""

import json
import sys

import openai
from asked import TEXTS

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
many = client.embeddings.create(model="vectors", input=TEXTS)
one = client.embeddings.create(
    model="vectors", input=TEXTS[0], dimensions=2, encoding_format="float"
)
try:
    client.embeddings.create(model="nobody", input=TEXTS)
except openai.NotFoundError as error:
    missing = [error.status_code, error.body["message"], error.code]
print(
    json.dumps(
        {
            "vectors": [found.embedding for found in many.data],
            "short": [found.embedding for found in one.data],
            "tokens": many.usage.total_tokens,
            "models": [model.id for model in client.models.list()],
            "missing": missing,
        }
    )
)
