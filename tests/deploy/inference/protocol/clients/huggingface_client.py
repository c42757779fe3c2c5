"""Hugging Face's client at a server of ours; what it saw, as JSON. Argument: http://host:port/models"""

import json
import sys

from asked import TEXTS
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError


def at(path):
    return InferenceClient(f"{sys.argv[1]}/{path}", token="none")


label = at("sst/predict").text_classification(TEXTS[0])
candidates = at("vectors/predict").zero_shot_classification(TEXTS[0], ["good_film", "bad"])
try:
    at("vectors/embed").feature_extraction(TEXTS[3], truncate=False)
except HfHubHTTPError as error:
    too_long = [error.response.status_code, error.response.json()["error"]]
print(
    json.dumps(
        {
            "vectors": at("vectors/embed").feature_extraction(TEXTS, truncate=True).tolist(),
            "vector": at("vectors/embed").feature_extraction(TEXTS[0], normalize=True).tolist(),
            "similarity": at("vectors/similarity").sentence_similarity(TEXTS[0], TEXTS[1:]),
            "label": [label.label, label.score],
            "candidates": {candidate.label: candidate.score for candidate in candidates},
            "too long": too_long,
        }
    )
)
