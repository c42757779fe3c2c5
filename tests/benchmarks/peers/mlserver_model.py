"""An engine of `infer.py` as a model of MLServer, which joins the texts of several requests."""

from __future__ import annotations

import infer  # the file beside this one
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Classifier(MLModel):
    async def load(self) -> bool:
        self._answer, _ = infer.open_for_texts(self.settings.parameters.extra["job"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        texts = StringCodec.decode_input(payload.inputs[0])
        scores = infer.softmax(self._answer(texts)).astype(np.float32)
        output = NumpyCodec.encode_output("scores", scores)
        return InferenceResponse(model_name=self.name, outputs=[output])
