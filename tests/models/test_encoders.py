"""Every family of encoders, beside transformers (families/make.py): folded into the network it
computes the same, and what is written back is what transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from safetensors.numpy import load_file, save_file

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import from_program
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.errors import UserError
from fleetbert.export import imported
from fleetbert.models import encoders, heads, weights

from paddlenlp import transformers as paddlenlp  # isort: skip  after fleetbert.compat

FAMILIES = ("bert", "roberta", "camembert", "xlm-roberta", "ernie", "distilbert", "electra")
MADE = np.load(Path(__file__).with_name("families") / "families.npz")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def files_of(family: str, head: str) -> tuple[dict, dict[str, np.ndarray]]:
    fields = json.loads(str(MADE[f"{family}/{head}/config"]))
    flat, tensors = MADE[f"{family}/{head}/tensors"], {}
    for name, shape in json.loads(str(MADE[f"{family}/{head}/shapes"])).items():
        size = int(np.prod(shape))
        tensors[name], flat = flat[:size].reshape(shape), flat[size:]
    assert not len(flat)
    return fields, tensors


def write_vocab(folder: Path, pad: int) -> None:
    """Thirty words; that of padding where the family has it."""
    words = [*SPECIAL, *(f"word{number}" for number in range(25))]
    words.insert(pad, words.pop(0))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def pad_of(family: str) -> int:
    return int(MADE[f"{family}/ids"][-1, -1])


def write(folder: Path, family: str, head: str) -> Path:
    folder.mkdir(exist_ok=True)
    fields, tensors = files_of(family, head)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    write_vocab(folder, pad_of(family))
    return folder


def open_network(folder: Path, task: str = "classification", pad: int | None = None):
    source = weights.open_source(config.Model(init=str(folder)))
    paddle.seed(3)
    network = heads.build(task, weights.bert_config(source, 3, 30, pad))
    report = weights.load(network, source)
    network.eval()
    return source, network, report


def arrays(family: str) -> list[paddle.Tensor]:
    return [paddle.to_tensor(MADE[f"{family}/{name}"]) for name in ("ids", "types")]


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


def test_hidden_states_and_logits_are_those_of_transformers(family, tmp_path):
    _, network, report = open_network(write(tmp_path / "m", family, "classifier"))
    ids, types = arrays(family)
    real = MADE[f"{family}/ids"] != pad_of(family)
    hidden = network.network.bert(ids, types)[0].numpy()
    wanted = MADE[f"{family}/classifier/hidden"]
    np.testing.assert_allclose(hidden[real], wanted[real], atol=1e-5)
    np.testing.assert_allclose(
        network(ids, types).numpy(), MADE[f"{family}/classifier/logits"], atol=1e-5
    )
    assert report == ([], [])


def test_masked_words_are_those_of_transformers(family, tmp_path):
    if family == "electra":
        pytest.skip("its head for words is that of a generator")
    _, network, report = open_network(write(tmp_path / "m", family, "mlm"), "mlm")
    real = MADE[f"{family}/ids"] != pad_of(family)
    logits = network(*arrays(family)).numpy().reshape(*real.shape, -1)
    wanted = MADE[f"{family}/mlm/logits"]
    np.testing.assert_allclose(logits[real], wanted[real], atol=1e-5)
    assert set(report.fresh) <= {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}


@pytest.mark.parametrize("head", ["classifier", "mlm"])
def test_what_is_written_back_is_what_was_read(family, head, tmp_path):
    if (family, head) == ("electra", "mlm"):
        pytest.skip("its head for words is that of a generator")
    task = "classification" if head == "classifier" else "mlm"
    source, network, _ = open_network(write(tmp_path / "m", family, head), task)
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    fields, given = files_of(family, head)
    found = load_file(tmp_path / "again" / "model.safetensors")
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said["architectures"] == fields["architectures"]
    changed = {"id2label", "label2id"}
    if family == "ernie":  # the first task is in the types of tokens now
        task_types = given.pop("ernie.embeddings.task_type_embeddings.weight")
        given["ernie.embeddings.token_type_embeddings.weight"] += task_types[0]
        changed |= {"use_task_id", "task_type_vocab_size"}
    assert {key: said[key] for key in fields if key in said and key not in changed} == {
        key: value for key, value in fields.items() if key in said and key not in changed
    }
    assert not said.get("use_task_id")
    if head == "mlm":  # the network's pooler, which started fresh
        found = {name: array for name, array in found.items() if "pooler" not in name}
        found = {n: a for n, a in found.items() if not n.startswith("pre_classifier")}
    assert set(found) == set(given)
    for name, array in given.items():
        if name.endswith("position_embeddings.weight"):  # rows that no token has
            unused = pad_of(family) + 1 if "roberta." in name else 0
            array, found[name] = array[unused:], found[name][unused:]
        np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)
    assert weights.open_source(config.Model(init=str(tmp_path / "again"))).shape == source.shape


@pytest.fixture
def bundle(family, tmp_path) -> bundles.Bundle:
    folder = write(tmp_path / "m", family, "classifier")
    return imported.import_model(
        config.Model(init=str(folder)), tmp_path / "bundle", None, max_length=16
    )


def test_the_program_computes_it(family, bundle):
    ids, types = (MADE[f"{family}/{name}"] for name in ("ids", "types"))
    run = engine.open_folder(engine.FLOAT32, bundle.folder("float32"), "cpu", 1)
    np.testing.assert_allclose(run(ids, types), MADE[f"{family}/classifier/logits"], atol=1e-5)


def test_the_program_becomes_the_network_again(family, bundle):
    source = from_program.open_bundle(bundle, 0.0)
    network = heads.build("classification", weights.bert_config(source, 3, 30))
    weights.load(network, source)
    network.eval()
    logits = network(*arrays(family)).numpy()
    np.testing.assert_allclose(logits, MADE[f"{family}/classifier/logits"], atol=1e-5)


def test_packed_rows_have_the_poolers_activation(family, tmp_path):
    """Two texts in one row, as training packs them, answer as each does alone."""
    _, network, _ = open_network(write(tmp_path / "m", family, "classifier"))
    ids, types = (MADE[f"{family}/{name}"] for name in ("ids", "types"))
    real = ids != pad_of(family)
    lengths = real.sum(1)
    row = [np.concatenate([part[n, : lengths[n]] for n in (0, 2)]) for part in (ids, types)]
    positions = np.concatenate([np.arange(lengths[n]) for n in (0, 2)])
    segments = np.repeat([1, 2], lengths[[0, 2]])
    given = [paddle.to_tensor(array[None]) for array in (*row, positions, segments)]
    logits = network(*given, paddle.to_tensor([0, lengths[0]])).numpy()
    wanted = MADE[f"{family}/classifier/logits"][[0, 2]]
    np.testing.assert_allclose(logits, wanted, atol=1e-5)


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_pairs_of_a_family_with_one_type_have_it_throughout(family, tmp_path):
    source, _, _ = open_network(write(tmp_path / "m", family, "classifier"))
    tokenizer = tokenizers.open(source.tokenizer)
    encoded = tokenizer.encode(["word1 word2"], ["word3"], 16)
    assert encoded.first_lengths.tolist() == [6]
    assert tokenizer.spec.settings["one_type"] is True


def test_training_moves_the_one_type_of_distilbert(tmp_path):
    """It goes into the positions, so that the encoder computes the same when it is read again."""
    source, network, _ = open_network(write(tmp_path / "m", "distilbert", "classifier"))
    table = network.network.bert.embeddings.token_type_embeddings.weight
    table.set_value(np.float32([np.arange(8) / 8, np.ones(8)]))
    expected = network(*arrays("distilbert")).numpy()
    assert np.abs(expected - MADE["distilbert/classifier/logits"]).max() > 1e-3
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    _, again, _ = open_network(tmp_path / "again")
    np.testing.assert_allclose(again(*arrays("distilbert")).numpy(), expected, atol=1e-5)


PADDLENLPS = {
    "bert": paddlenlp.BertForSequenceClassification,
    "ernie": paddlenlp.ErnieForSequenceClassification,
    "roberta": paddlenlp.RobertaForSequenceClassification,
    "electra": paddlenlp.ElectraForSequenceClassification,
    "distilbert": paddlenlp.DistilBertForSequenceClassification,
}


def write_paddlenlps(folder: Path, family: str) -> Path:
    """Its names begin as the family's; its layout is the network's."""
    write(folder, family, "classifier")
    fields, files = files_of(family, "classifier")
    known = encoders.families[family]
    plain = known._replace(fold=encoders.unchanged)
    tensors, _ = encoders.read(plain, fields, files)
    named = {}
    for name, array in tensors.items():
        for theirs, own in known.classifier[::-1]:
            if name.startswith(own):
                name = name.replace(own, theirs)
                break
        name = name.replace("bert.", known.prefix, 1) if name.startswith("bert.") else name
        named[name] = paddle.to_tensor(array)
    paddle.save(named, str(folder / "model_state.pdparams"))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("family", PADDLENLPS)
def test_paddlenlps_files_of_the_family(family, tmp_path):
    """PaddleNLP opens what is written back, and it computes the same."""
    wanted = MADE[f"{family}/classifier/logits"]
    source, network, _ = open_network(write_paddlenlps(tmp_path / "m", family))
    np.testing.assert_allclose(network(*arrays(family)).numpy(), wanted, atol=1e-5)
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    theirs = PADDLENLPS[family].from_pretrained(str(tmp_path / "again"))
    theirs.eval()
    ids, types = arrays(family)
    given = {"input_ids": ids, "attention_mask": (ids != pad_of(family)).astype("int64")}
    if family == "electra":
        given.pop("attention_mask")  # 2.8.1 takes one of another shape only
    if family != "distilbert":
        given["token_type_ids"] = types
    np.testing.assert_allclose(theirs(**given).numpy(), wanted, atol=1e-5)
    assert encoders.is_paddlenlps(load_file(tmp_path / "again" / "model.safetensors"))
    assert weights.open_source(config.Model(init=str(tmp_path / "again"))).shape == source.shape


@pytest.mark.parametrize("family", ["bert", "ernie", "electra"])
def test_model_config_of_older_versions_of_paddlenlp(family, tmp_path):
    folder = write_paddlenlps(tmp_path / "m", family)
    fields = json.loads((folder / "config.json").read_text())
    title = fields["architectures"][0]
    kept = (*encoders.FIELDS, "use_task_id", "task_type_vocab_size", "embedding_size")
    encoder = {name: fields[name] for name in kept if name in fields and name != "pad_token_id"}
    encoder["init_class"] = title.replace("ForSequenceClassification", "Model")
    outer = {"init_args": [encoder, 3], "dropout": None, "init_class": title}
    (folder / "model_config.json").write_text(json.dumps(outer))
    (folder / "config.json").unlink()
    source, network, _ = open_network(folder)
    assert source.family.model_type == family
    wanted = MADE[f"{family}/classifier/logits"]
    np.testing.assert_allclose(network(*arrays(family)).numpy(), wanted, atol=1e-5)
    outer["init_class"] = encoder["init_class"] = "ErnieMModel"
    (folder / "model_config.json").write_text(json.dumps(outer))
    with pytest.raises(UserError, match="is a ErnieMModel; supported are BERT"):
        weights.open_source(config.Model(init=str(folder)))


@pytest.mark.parametrize(
    ("fields", "logits", "pair", "task", "labels"),
    [
        ({}, 3, False, "classification", ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({}, 1, False, "regression", []),
        ({"problem_type": "regression"}, 1, True, "pair_regression", []),
        (
            {"problem_type": "multi_label_classification"},
            2,
            False,
            "multi_label_classification",
            ["LABEL_0", "LABEL_1"],
        ),
    ],
)
def test_the_task_of_a_head_is_what_its_config_says(fields, logits, pair, task, labels, tmp_path):
    folder = write_head(tmp_path / "m", logits, fields)
    bundle = imported.import_model(
        config.Model(init=str(folder)), tmp_path / "bundle", None, pair, max_length=16
    )
    assert (bundle.task.name, bundle.labels) == (task, labels)


@pytest.mark.parametrize(
    ("problem", "pair", "said"),
    [
        ("regression", False, "its head gives 3 numbers for each text"),
        ("multi_label_classification", True, "several labels, which only single texts have"),
    ],
)
def test_heads_that_no_task_has_are_refused(problem, pair, said, tmp_path):
    folder = write_head(tmp_path / "m", 3, {"problem_type": problem})
    with pytest.raises(UserError, match=said):
        imported.import_model(config.Model(init=str(folder)), tmp_path / "bundle", None, pair)
    assert not (tmp_path / "bundle").exists()


def write_head(folder: Path, logits: int, fields: dict) -> Path:
    """A BERT with the first of its logits, and more fields in config.json."""
    write(folder, "bert", "classifier")
    known, files = files_of("bert", "classifier")
    for name in ("classifier.weight", "classifier.bias"):
        files[name] = files[name][:logits]
    save_file(files, folder / "model.safetensors")
    known = {name: value for name, value in known.items() if name not in ("id2label", "label2id")}
    (folder / "config.json").write_text(json.dumps({**known, **fields}))
    return folder


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "albert"}, "is a albert, which is not supported: its layers share one"),
        ({"model_type": "modernbert"}, "its positions are rotations"),
        ({"model_type": "mpnet"}, "depend on relative positions"),
        ({"model_type": "gpt2"}, "is a gpt2; supported are BERT, RoBERTa"),
        ({"model_type": "electra"}, "embeddings are 128 wide and its layers 256"),
        ({"model_type": "ernie", "position_embedding_type": "relative_key"}, "relative position"),
    ],
)
def test_what_does_not_fold_is_refused_with_the_reason(fields, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=said):
        weights.open_source(config.Model(init=str(tmp_path)))
