"""PyTorch and transformers: eager or compiled, in float32, bfloat16 or int8."""

from __future__ import annotations

import torch
import transformers


def open_engine(job):
    """dtype: float32, bfloat16 (autocast), torchao (int8 weights, dynamic activations) or
    quantize_dynamic (PyTorch's own int8 Linear). compiled: torch.compile with frozen weights."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(job["threads"])
    network = transformers.BertForSequenceClassification.from_pretrained(job["folder"]).eval()
    dtype = job.get("dtype", "float32")
    if dtype == "torchao":
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(network, Int8DynamicActivationInt8WeightConfig())
    if dtype == "quantize_dynamic":
        linear = {torch.nn.Linear}
        network = torch.ao.quantization.quantize_dynamic(network, linear, dtype=torch.qint8)
    if job.get("compiled"):
        from torch._inductor import config

        config.freezing = True
        network = torch.compile(network, dynamic=True)

    def run(input_ids, token_type_ids):
        ids = torch.from_numpy(input_ids)
        bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
        with torch.inference_mode(), bfloat16:
            reply = network(
                input_ids=ids,
                attention_mask=(ids != job["pad_id"]).long(),
                token_type_ids=torch.from_numpy(token_type_ids),
            )
            return reply.logits.float().numpy()

    return run, torch.__version__.partition("+")[0]
