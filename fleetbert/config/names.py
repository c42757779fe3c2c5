"""The key that was meant by a name that no key has: other frameworks' names, and misspelt ones."""

from __future__ import annotations

import difflib
from typing import NamedTuple, Sequence

from pydantic import BaseModel

from fleetbert.config.keys import fields, rule

# Names of arguments in Python for keys of all jobs that read tables.
COLUMNS = {
    name: f"data.{name}"
    for name in ("text_column", "text_pair_column", "negative_column", "label_column", "quoting")
}
# Of jobs that train.
SHORT = {
    "init": "model.init",
    "task": "task.name",
    "few_shot": "task.few_shot",
    "epochs": "trainer.epochs",
    "batch_size": "data.batch_size",
    "learning_rate": "optimizer.learning_rate",
    "max_length": "data.max_length",
    "seed": "trainer.seed",
    "device": "trainer.device",
    "resume": "trainer.resume",
    **COLUMNS,
}
# Names of all arguments in Python, for hints.
ARGUMENTS = {
    **SHORT,
    "train": "data.train",
    "dev": "data.dev",
    "calibration": "calibration.data",
    "gate": "gate.data",
    "max_drop": "gate.max_accuracy_drop",
}

# What transformers' TrainingArguments, PaddleNLP, SetFit, sentence-transformers, Lightning,
# Optimum, text-embeddings-inference and Triton call a key. Of several rows with a name, the first
# whose key the job has holds. With a value (or more keys) where the given value does not fit.
ELSEWHERE = {
    "task.name": "problem_type task_type task_name",
    "task.mask_probability": "mlm_probability masked_lm_prob",
    "task.whole_word": "whole_word_mask wwm",
    "task.pooling": "pooling_mode pooling_strategy pool",
    "task.negatives": "num_negatives num_hard_negatives train_group_size",
    "data.train": "train_file train_path train_data train_dataset train_set train_ds "
    "train_data_file",
    "data.dev": "validation_file valid_file dev_file eval_file dev_path dev_set dev_ds "
    "eval_dataset validation_data eval_data_file",
    "data.text_column": "text_column_name text_column_names text_col text_field sentence1_key "
    "sentence_column",
    "data.text_pair_column": "sentence2_key text_pair second_text_column",
    "data.label_column": "label_column_name label_col label_field target_column labels_column",
    "data.max_length": "max_seq_length max_seq_len max_source_length model_max_length max_len",
    "data.batch_size": "per_device_train_batch_size per_gpu_train_batch_size train_batch_size bs "
    "global_batch_size",
    "data.eval_batch_tokens=2048": "per_device_eval_batch_size eval_batch_size",
    "data.batching=bucket": "group_by_length length_column_name",
    "data.batching=pack": "packing",
    "data.num_workers": "dataloader_num_workers num_proc",
    "data.cache": "cache_dir dataset_cache",
    "model.init": "model_name_or_path model_name pretrained_model_name_or_path base_model "
    "pretrained_model model_path",
    "model.vocab": "tokenizer_name tokenizer_name_or_path tokenizer vocab_file",
    "model.lowercase": "do_lower_case",
    "model.dropout": "hidden_dropout_prob attention_probs_dropout_prob dropout_rate",
    "model.num_hidden_layers": "num_layers n_layers student_layers layers",
    "model.num_attention_heads": "num_heads n_heads",
    "optimizer.name": "optim optimizer_name optimizer_class",
    "optimizer.learning_rate": "lr base_lr peak_lr body_learning_rate encoder_learning_rate",
    "optimizer.schedule": "lr_scheduler_type lr_scheduler scheduler warmup_scheduler",
    "optimizer.warmup_ratio": "warmup_proportion warmup_fraction",
    "optimizer.warmup_ratio=0.1": "warmup_steps num_warmup_steps warmup",
    "optimizer.weight_decay": "wd l2_weight",
    "optimizer.layer_decay": "layerwise_lr_decay layer_wise_lr_decay llrd lr_decay",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.epsilon": "adam_epsilon eps",
    "optimizer.max_grad_norm": "gradient_clip_val grad_clip clip_grad_norm max_norm",
    "optimizer.accumulate_steps": "gradient_accumulation_steps accumulate_grad_batches "
    "grad_accum_steps",
    "loss.label_smoothing": "label_smoothing_factor",
    "loss.class_weights": "class_weight",
    "loss.positive_weights": "pos_weight",
    "loss.r_drop": "rdrop rdrop_coef use_rdrop",
    "precision.level=O1": "fp16 use_amp amp mixed_precision",
    "precision.level=O1 precision.dtype=bfloat16": "bf16",
    "precision.level": "fp16_opt_level precision",
    "precision.init_loss_scaling": "scale_loss loss_scale",
    "strategy.hang_timeout": "ddp_timeout",
    "trainer.epochs": "num_train_epochs max_epochs num_epochs n_epochs train_epochs",
    "distill.epochs": "num_train_epochs max_epochs num_epochs n_epochs train_epochs",
    "trainer.max_steps": "num_train_steps total_steps num_steps",
    "trainer.seed": "random_seed data_seed",
    "trainer.device=cpu": "no_cuda use_cpu",
    "trainer.device": "accelerator",
    "trainer.log_every": "logging_steps log_every_n_steps log_steps log_interval logging_strategy",
    "trainer.eval_every": "eval_steps val_check_interval evaluation_steps valid_steps "
    "eval_interval",
    "trainer.eval_every=null": "evaluation_strategy eval_strategy",
    "trainer.checkpoint_every": "save_steps checkpoint_save_steps every_n_train_steps "
    "save_interval",
    "trainer.checkpoint_every=null": "save_strategy",
    "trainer.keep_checkpoints": "save_total_limit save_top_k checkpoint_save_total_limit",
    "trainer.resume": "resume_from_checkpoint ckpt_path init_from_ckpt",
    "trainer.resume=none": "overwrite_output_dir",
    "trainer.best_metric": "metric_for_best_model monitor",
    "trainer.patience": "early_stopping_patience early_stopping es_patience",
    "trainer.recompute": "gradient_checkpointing use_recompute",
    "trainer.compile": "torch_compile to_static",
    "callbacks.progress=false": "disable_tqdm",
    "callbacks.progress": "show_progress_bar enable_progress_bar",
    "callbacks.wandb": "wandb_project",
    "callbacks.visualdl": "logging_dir report_to logger",
    "distill.teacher": "teacher_model teacher_model_name_or_path teacher_name_or_path teacher_path",
    "distill.temperature": "kd_temperature distillation_temperature",
    "distill.speed": "exit_threshold early_exit_threshold entropy_threshold",
    "bundle": "model_name_or_path model_name model model_path model_dir onnx_model",
    "method": "approach quantization_approach quantization_method algo quantize_mode",
    "bits": "weight_bits num_bits",
    "skip": "exclude nodes_to_exclude op_types_to_exclude skip_tensor_list ignored_layers",
    "calibration.data": "calibration_dataset calib_data calib_dataset calibration_data",
    "calibration.texts": "calib_size num_calibration_samples calibration_sampling_size",
    "gate.data": "eval_dataset eval_file validation_file test_file",
    "gate.max_accuracy_drop": "max_drop accuracy_drop tolerable_loss accuracy_criterion",
    "output_dir": "out_dir save_dir default_root_dir output_path output save_path",
    "listen.host": "hostname address bind",
    "listen.http_port": "port",
    "listen.admin_port": "metrics_port prometheus_port",
    "repository.path": "model_repository model_store model_dir model_base_path",
    "batching.batch_tokens": "max_batch_tokens max_batch_size max_batch_total_tokens",
    "batching.max_wait_ms": "max_queue_delay_microseconds batch_timeout max_batch_delay",
    "batching.timeout_ms": "request_timeout timeout",
    "engine.workers": "num_workers instance_count instance_group",
    "engine.threads": "num_threads intra_op_num_threads omp_num_threads "
    "cpu_math_library_num_threads",
    "safety.api_key_file": "api_key",
    "safety.tls_certificate": "ssl_certfile certfile grpc_server_cert",
    "safety.tls_key": "ssl_keyfile keyfile grpc_server_key",
    "safety.max_texts": "max_client_batch_size",
    "safety.max_connections": "max_concurrent_requests limit_concurrency",
    "logs.level": "log_level log_verbose",
    "logs.format": "json_output log_format",
}

# What has no key, and what is done instead.
WITHOUT_KEY = {
    "columns of a table are named by data.text_column and data.label_column": "text_columns "
    "column_mapping input_columns",
    "labels are those of the training table": "num_labels num_classes label_list n_classes "
    "label_names id2label",
    "the best step's weights are always exported": "load_best_model_at_end",
    "a metric other than loss is better when it is higher": "greater_is_better",
    "a job trains, and evaluates on data.dev if that is given": "do_train do_eval do_predict",
    "a process is started for each device by paddle.distributed.launch": "local_rank n_gpu "
    "num_gpus gpus devices nproc_per_node deepspeed fsdp",
}

# Spelling: of difflib's ratio. At 0.75 a word of 8 letters may have 2 others.
CUTOFF = 0.75


class Meant(NamedTuple):
    """key: "" where `note` says what is done without one. value: where that which was given does
    not fit: "O1", or "O1 precision.dtype=bfloat16"."""

    key: str
    value: str | None = None
    note: str = ""


def meant(name: str, schemas: Sequence[type[BaseModel]]) -> Meant | None:
    """The key or section of the schemas that a name (dotted, or an option's) means: by what it is
    called elsewhere, by its last part, by its spelling. None where nothing is near."""
    name = name.replace("-", "_")
    last = name.rpartition(".")[2].lower()
    keys = {dotted: field for schema in schemas for dotted, field in fields(schema)}
    words: dict[str, Meant] = {}
    for target, others in ELSEWHERE.items():
        dotted, _, value = target.partition("=")
        if dotted in keys:
            for word in others.split():
                words.setdefault(word, Meant(dotted, value or None))
    for note, others in WITHOUT_KEY.items():
        words.update({word: Meant("", None, note) for word in others.split()})
    # Of several keys with the same last part, one that people set.
    for dotted in sorted(keys, key=lambda dotted: not rule(keys[dotted], "common_for")):
        words.setdefault(dotted.rpartition(".")[2], Meant(dotted))
    if last in words:
        return words[last]
    sections = {dotted[:at] for dotted in keys for at, sign in enumerate(dotted) if sign == "."}
    for near in difflib.get_close_matches(name, [*keys, *sorted(sections)], 1, CUTOFF):
        return Meant(near)
    for near in difflib.get_close_matches(last, words, 1, CUTOFF):
        return words[near]
    return None


def hint(
    name: str,
    schemas: Sequence[type[BaseModel]],
    value: str | None = None,
    is_argument: bool = False,
) -> str:
    """`; did you mean trainer.epochs=2?`, of the key that `name` means; empty where none is near.

    value: as it was given, if on a command line. is_argument: the name is that of an argument in
    Python; then the key's argument is shown too.
    """
    target = meant(name, schemas)
    if target is None:
        return ""
    if not target.key:
        return f"; {target.note}"
    shown = target.value or (None if is_argument else value)
    word = target.key if shown is None else f"{target.key}={shown}"
    if is_argument and "." in target.key:
        by_key = {dotted: argument for argument, dotted in ARGUMENTS.items()}
        argument = by_key.get(target.key, f'**{{"{target.key}": ...}}')
        word += f" (as an argument: {argument})"
    return f"; did you mean {word}?"
