"""Every family of encoders, beside transformers (families/make.py): folded into the network it
computes the same, and what is written back is what transformers wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from encoder_files import (
    FAMILIES,
    HIDDEN,
    MADE,
    WORDS,
    change_fields,
    change_tensors,
    files_of,
    given,
    loaded,
    pad_of,
    source_of,
    write,
)
from safetensors.numpy import load_file

from fleetbert import config
from fleetbert.compression import from_program
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import tokenizers
from fleetbert.engines import engine
from fleetbert.export import imported
from fleetbert.models import bert, encoders, folds, refused, task_heads, weights
from fleetbert.models.network import FIELDS

from paddlenlp import transformers as paddlenlp  # isort: skip  after fleetbert.compat

TASKS = {"classifier": "classification", "mlm": "mlm"}
# ELECTRA's head for words is that of a generator.
HEADS = [
    (family, head)
    for head in TASKS
    for family in FAMILIES
    if not (family.startswith("electra") and head == "mlm")
]


def assert_close(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_answers_are_those_of_transformers(family, head, tmp_path):
    network, report = loaded(write(tmp_path / "m", family, head), TASKS[head])
    real = MADE[f"{family}/ids"] != pad_of(family)
    hidden = task_heads.encode(network.network.bert, *given(family))
    assert_close(hidden.numpy()[real], MADE[f"{family}/{head}/hidden"][real])
    logits, wanted = network(*given(family)).numpy(), MADE[f"{family}/{head}/logits"]
    if head == "mlm":
        logits, wanted = logits.reshape(*real.shape, -1)[real], wanted[real]
        assert set(report.fresh) <= {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    else:
        assert report == ([], [])
    assert_close(logits, wanted)


@pytest.mark.parametrize(("family", "head"), [case for case in HEADS if case[0] != "albert"])
def test_what_is_written_back_is_what_was_read(family, head, tmp_path):
    source = source_of(write(tmp_path / "m", family, head))
    network, _ = loaded(tmp_path / "m", TASKS[head])
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    fields, tensors = files_of(family, head)
    found = load_file(tmp_path / "again" / "model.safetensors")
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    changed = {"id2label", "label2id", *source.family.fixed}
    if family == "ernie":  # the first task is in the types of tokens now
        task_types = tensors.pop("ernie.embeddings.task_type_embeddings.weight")
        tensors["ernie.embeddings.token_type_embeddings.weight"] += task_types[0]
        changed |= {"use_task_id", "task_type_vocab_size"}
    same = {*fields} & {*said} - changed
    assert {key: said[key] for key in same} == {key: fields[key] for key in same}
    assert "architectures" in same and not said.get("use_task_id")
    if head == "mlm":  # the network's pooler, which started fresh
        found = {n: a for n, a in found.items() if "pooler" not in n and "pre_class" not in n}
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        if name.endswith("position_embeddings.weight"):  # rows that no token has
            unused = pad_of(family) + 1 if "roberta." in name else 0
            array, found[name] = array[unused:], found[name][unused:]
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert source_of(tmp_path / "again").shape == source.shape


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family in ("roberta", "albert") else pytest.mark.slow)
        for family in FAMILIES
    ],
)
def test_the_program_computes_it_and_becomes_the_network_again(family, tmp_path):
    bundle = imported.import_model(
        config.Model(init=str(write(tmp_path / "m", family))), tmp_path / "bundle", None,
        max_length=16,
    )  # fmt: skip
    wanted = MADE[f"{family}/classifier/logits"]
    run = engine.open_folder(engine.FLOAT32, bundle.folder("float32"), "cpu", 1)
    pad_id = tokenizers.open(bundle).pad_id
    assert_close(run(MADE[f"{family}/ids"], MADE[f"{family}/types"], pad_id=pad_id), wanted)
    source = from_program.open_bundle(bundle, 0.2)
    assert source.shape["hidden_dropout_prob"] == 0.2
    network = task_heads.build("classification", weights.bert_config(source, 3, WORDS))
    assert weights.load(network, source) == ([], [])
    network.eval()
    assert_close(network(*given(family)).numpy(), wanted)


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_pairs_of_a_family_with_one_type_have_it_throughout(family, tmp_path):
    tokenizer = tokenizers.open(source_of(write(tmp_path / "m", family)).tokenizer)
    encoded = tokenizer.encode(["word1 word2"], ["word3"], 16)
    assert encoded.first_lengths.tolist() == [6]
    assert tokenizer.spec.settings["one_type"] is True


@pytest.mark.parametrize("head", ["classifier", "mlm"])
def test_albert_is_written_as_a_bert_whose_embeddings_are_projected(head, tmp_path):
    """Its layers part when they are trained."""
    source = source_of(write(tmp_path / "m", "albert", head))
    network, _ = loaded(tmp_path / "m", TASKS[head])
    bias = network.network.bert.encoder.layers[1].linear1.bias
    bias.set_value(bias + 1)
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    fields = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (fields["model_type"], fields["embedding_size"], fields["hidden_size"]) == ("bert", 4, 8)
    again, report = loaded(tmp_path / "again", TASKS[head])
    assert report == ([], [])
    assert_close(again(*given("albert")).numpy(), network(*given("albert")).numpy())


def test_training_moves_the_one_type_of_distilbert(tmp_path):
    """It goes into the positions, so that the encoder computes the same when it is read again."""
    network, _ = loaded(write(tmp_path / "m", "distilbert"))
    table = network.network.bert.embeddings.token_type_embeddings.weight
    table.set_value(np.float32([np.arange(8) / 8, np.ones(8)]))
    expected = network(*given("distilbert")).numpy()
    assert np.abs(expected - MADE["distilbert/classifier/logits"]).max() > 1e-3
    weights.save_folder(network, source_of(tmp_path / "m"), tmp_path / "again", ["x", "y", "z"])
    again, _ = loaded(tmp_path / "again")
    assert_close(again(*given("distilbert")).numpy(), expected)


PADDLENLPS = {
    "bert": paddlenlp.BertForSequenceClassification,
    "ernie": paddlenlp.ErnieForSequenceClassification,
    "roberta": paddlenlp.RobertaForSequenceClassification,
    "electra": paddlenlp.ElectraForSequenceClassification,
    "distilbert": paddlenlp.DistilBertForSequenceClassification,
}


def write_paddlenlps(folder: Path, family: str) -> Path:
    """Its names begin as the family's; its layout is the network's."""
    write(folder, family)
    known = encoders.families[family]
    tensors, _ = encoders.read(
        known._replace(fold=folds.unchanged), *files_of(family, "classifier")
    )
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
    source = source_of(write_paddlenlps(tmp_path / "m", family))
    network, _ = loaded(tmp_path / "m")
    assert_close(network(*given(family)).numpy(), wanted)
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    theirs = PADDLENLPS[family].from_pretrained(str(tmp_path / "again"))
    theirs.eval()
    ids, types = given(family)
    asked = {"input_ids": ids, "attention_mask": (ids != pad_of(family)).astype("int64")}
    if family == "electra":
        asked.pop("attention_mask")  # 2.8.1 takes one of another shape only
    if family != "distilbert":
        asked["token_type_ids"] = types
    assert_close(theirs(**asked).numpy(), wanted)
    assert encoders.is_paddlenlps(load_file(tmp_path / "again" / "model.safetensors"))
    assert source_of(tmp_path / "again").shape == source.shape


@pytest.mark.parametrize("family", ["bert", "ernie", "electra"])
def test_model_config_of_older_versions_of_paddlenlp(family, tmp_path):
    folder = write_paddlenlps(tmp_path / "m", family)
    fields = json.loads((folder / "config.json").read_text())
    title = fields["architectures"][0]
    kept = (*FIELDS, "use_task_id", "task_type_vocab_size", "embedding_size")
    encoder = {name: fields[name] for name in kept if name in fields and name != "pad_token_id"}
    encoder["init_class"] = title.replace("ForSequenceClassification", "Model")
    outer = {"init_args": [encoder, 3], "dropout": None, "init_class": title}
    (folder / "model_config.json").write_text(json.dumps(outer))
    (folder / "config.json").unlink()
    assert source_of(folder).family.model_type == family
    network, _ = loaded(folder)
    assert_close(network(*given(family)).numpy(), MADE[f"{family}/classifier/logits"])
    outer["init_class"] = encoder["init_class"] = "ErnieMModel"
    (folder / "model_config.json").write_text(json.dumps(outer))
    with pytest.raises(UserError, match="is a ErnieMModel; supported are BERT"):
        source_of(folder)


def write_head(folder: Path, logits: int, fields: dict) -> config.Model:
    """A BERT with the first of its logits, and more fields in config.json."""
    write(folder)

    def narrow(tensors):
        for name in ("classifier.weight", "classifier.bias"):
            tensors[name] = tensors[name][:logits]

    change_tensors(folder, narrow)
    change_fields(folder, **{"id2label": None, "label2id": None, **fields})
    return config.Model(init=str(folder))


SEVERAL = {"problem_type": "multi_label_classification"}
NUMBER = {"problem_type": "regression"}
TAGGER = {"architectures": ["BertForTokenClassification"]}


@pytest.mark.parametrize(
    ("fields", "logits", "pair", "task", "labels"),
    [
        (
            {**TAGGER, "id2label": {"0": "I-per", "1": "O", "2": "VERB"}},
            *(3, False, "token_classification", ["I-per", "O", "I-VERB"]),
        ),
        (
            {"architectures": "BertForTokenClassification", "id2label": {"0": "O", "1": "B-a"}},
            *(2, False, "token_classification", ["O", "B-a"]),
        ),
        ({}, 3, False, "classification", ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({}, 1, False, "regression", []),
        (NUMBER, 1, True, "pair_regression", []),
        (SEVERAL, 2, False, "multi_label_classification", ["LABEL_0", "LABEL_1"]),
    ],
)
def test_the_task_of_a_head_is_what_its_config_says(fields, logits, pair, task, labels, tmp_path):
    model = write_head(tmp_path / "m", logits, fields)
    bundle = imported.import_model(model, tmp_path / "bundle", None, pair, max_length=16)
    assert (bundle.task.name, bundle.labels) == (task, labels)


@pytest.mark.parametrize(
    ("pair", "message"),
    [(False, "has no id2label, which names the tags"), (True, "tags the tokens of single texts")],
)
def test_a_tagger_needs_tags_and_single_texts(pair, message, tmp_path):
    model = write_head(tmp_path / "m", 3, TAGGER)
    with pytest.raises(UserError, match=message):
        imported.import_model(model, tmp_path / "bundle", None, pair, max_length=16)


def finder_files(family, folder):
    """Its encoder as `…ForQuestionAnswering`, whose layer transformers calls qa_outputs."""
    fields, _ = files_of(family, "classifier")
    made = write(folder, family)
    weight = np.random.default_rng(4).normal(size=(2, HIDDEN)).astype(np.float32)

    def change(tensors):
        for name in [n for n in tensors if "classifier" in n or "pooler" in n]:
            del tensors[name]
        tensors["qa_outputs.weight"], tensors["qa_outputs.bias"] = weight, weight[:, 0].copy()

    change_tensors(made, change)
    bare = fields["architectures"][0].partition("For")[0]
    change_fields(made, architectures=[f"{bare}ForQuestionAnswering"], id2label=None, label2id=None)
    return made, weight


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "distilbert", "albert"])
def test_a_finder_of_answers_is_imported_and_written_back(family, tmp_path):
    made, weight = finder_files(family, tmp_path / "m")
    bundle = imported.import_model(
        config.Model(init=str(made)), tmp_path / "bundle", None, max_length=16
    )
    assert (bundle.task.name, bundle.labels) == ("question_answering", [])
    wanted = MADE[f"{family}/classifier/hidden"] @ weight.T + weight[:, 0]
    network, report = loaded(made, "question_answering", 2)
    assert report.unused == []
    real = MADE[f"{family}/ids"] != pad_of(family)
    assert_close(network(*given(family)).numpy()[real], wanted[real])
    weights.save_folder(network, source_of(made), tmp_path / "again", ["no_answer"])
    fields = json.loads((tmp_path / "again" / "config.json").read_text())
    assert fields["architectures"][0].endswith("ForQuestionAnswering")
    assert "id2label" not in fields
    assert "qa_outputs.weight" in load_file(tmp_path / "again" / "model.safetensors")
    with pytest.raises(UserError, match=r"labels: .* leave labels out, or give no_answer"):
        imported.import_model(config.Model(init=str(made)), tmp_path / "b", ["x", "y"])


@pytest.mark.parametrize("kind", ["Bert", "Ernie"])
def test_a_finder_of_answers_of_paddlenlps_is_imported(kind, tmp_path):
    """As its save_pretrained writes it."""
    family = kind.lower()
    made = write(tmp_path / "m", family)
    (made / "model.safetensors").unlink()
    fields = json.loads((made / "config.json").read_text())
    shape = {name: fields[name] for name in (*FIELDS, "use_task_id") if name in fields}
    paddle.seed(3)
    settings = getattr(paddlenlp, f"{kind}Config")(**{**shape, "initializer_range": 0.3})
    theirs = getattr(paddlenlp, f"{kind}ForQuestionAnswering")(settings)
    theirs.eval()
    theirs.save_pretrained(str(made))
    bundle = imported.import_model(
        config.Model(init=str(made)), tmp_path / "bundle", None, max_length=16
    )
    assert (bundle.task.name, bundle.labels) == ("question_answering", [])
    network, report = loaded(made, "question_answering", 2)
    wanted = np.stack([logits.numpy() for logits in theirs(*given(family))], 2)
    real = MADE[f"{family}/ids"] != pad_of(family)
    assert report.unused == [] and wanted.std() > 0.3
    assert_close(network(*given(family)).numpy()[real], wanted[real])


def test_an_import_says_how_long_texts_are_read(tmp_path):
    made, _ = finder_files("bert", tmp_path / "m")

    def reading(**keys):
        model = config.Model(init=str(made))
        return imported.import_model(
            model, tmp_path / "b", None, **{"max_length": 16, **keys}
        ).reading

    assert reading() == Reading(16)
    assert reading(long_texts="windows", stride=5) == Reading(16, "windows", 5)
    assert reading(long_texts="windows") == Reading(16, "windows", 5)
    with pytest.raises(UserError, match=r"long_texts: question_answering reads all of a context"):
        reading(long_texts="head_tail")
    with pytest.raises(UserError, match=r"stride: is for long_texts: windows"):
        reading(stride=5)
    for stride in (9, -1):
        with pytest.raises(UserError, match=r"stride: windows may share from 0 to half .*\(16\)"):
            reading(long_texts="windows", stride=stride)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
    ],
)
def test_the_activation_of_a_cross_encoder_is_told(fields, warned, tmp_path, caplog):
    model = write_head(tmp_path / "m", 1, fields)
    imported.import_model(model, tmp_path / "bundle", None, True, max_length=16)
    assert ("CrossEncoder.predict answers with Sigmoid of the number" in caplog.text) == warned


@pytest.mark.parametrize(
    ("fields", "pair", "sentence"),
    [
        (NUMBER, False, "its head gives 3 numbers for each text"),
        (SEVERAL, True, "several labels, which only single texts have"),
    ],
)
def test_heads_that_no_task_has_are_refused(fields, pair, sentence, tmp_path):
    model = write_head(tmp_path / "m", 3, fields)
    with pytest.raises(UserError, match=sentence):
        imported.import_model(model, tmp_path / "bundle", None, pair)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model_type": "albert", "num_hidden_groups": 2}, "num_hidden_groups: 2; only one layer"),
        ({"model_type": "modernbert"}, "its positions are rotations"),
        ({"model_type": "mpnet"}, "depend on relative positions"),
        ({"model_type": "gpt2"}, "is a gpt2; supported are BERT, RoBERTa"),
        ({"model_type": "ernie", "position_embedding_type": "relative_key"}, "relative position"),
        (
            {"is_decoder": True},
            "config.json says is_decoder: true; tokens that see only those befo",
        ),
        ({"model_type": "roberta", "add_cross_attention": True}, "add_cross_attention: true"),
        ({"model_type": "electra", "is_decoder": True}, "is_decoder: true"),
        ({"pool_act": "relu"}, 'pool_act: "relu"'),
        ({"task_id": 2}, "task_id: 2; only task 0"),
        ({"pruned_heads": {"0": [1]}}, "take the model unpruned"),
        ({"quantization_config": {"bits": 4}}, "before it was quantized"),
        ({"hidden_size": None}, "config.json says hidden_size: null; it has to be a number"),
        ({"num_attention_heads": "4"}, 'num_attention_heads: "4"; it has to be a number'),
        ({"layer_norm_eps": 0.01}, "layer_norm_eps: 0.01; it has to be from 0 to 0.001"),
        ({"num_attention_heads": 0}, "num_attention_heads: 0; it has to be from 1 to "),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000; it has to be from 1 to 1024"),
        ({"hidden_dropout_prob": 5}, "hidden_dropout_prob: 5; it has to be from 0 to 1"),
        ({"hidden_size": 8, "num_attention_heads": 2}, "config.json has no num_hidden_la"),
        ({"model_type": ["bert"]}, r"is a \['bert'\]; supported are"),
        ({"hidden_act": None}, "hidden_act: null; it has to be a text"),
        ({"model_type": "distilbert", "n_heads": 1.5}, "n_heads: 1.5; it has to be a number"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id: null; it has to be a num"),
    ],
)
def test_what_does_not_fold_is_refused_with_the_reason(fields, sentence, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=sentence):
        source_of(tmp_path)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_hidden_layers": 1000}, "num_hidden_layers: 1000, and the weights have 2"),
        ({"hidden_size": 1 << 20}, "hidden_size: 1048576, and the weights have 8"),
        ({"vocab_size": 1 << 24}, "vocab_size: 16777216, and the weights have "),
        ({"num_attention_heads": 3}, "num_attention_heads: 3, which does not divide hidden_size"),
    ],
)
def test_sizes_are_those_of_the_weights_before_a_network_is_built(fields, sentence, tmp_path):
    folder = write(tmp_path / "m")
    change_fields(folder, **fields)
    with pytest.raises(UserError, match=sentence):
        weights.bert_config(source_of(folder), 2, 1)


def test_null_is_the_usual_value(tmp_path):
    folder = write(tmp_path / "m")
    fields = json.loads((folder / "config.json").read_text())
    fields.update(dict.fromkeys((*refused.ONLY, "pad_token_id")))
    (folder / "config.json").write_text(json.dumps(fields))
    network, _ = loaded(folder)
    assert_close(network(*given("bert")).numpy(), MADE["bert/classifier/logits"])


@pytest.mark.parametrize("family", ["bert", "ernie", "electra"])
def test_a_model_with_one_type_of_tokens(family, tmp_path):
    """It computes what one with two computes for tokens of the first, and is written back so."""
    folder = write(tmp_path / "m", family)
    ids, types = given(family)
    network, _ = loaded(folder)
    wanted = network(ids, paddle.zeros_like(types)).numpy()
    name = f"{family}.embeddings.token_type_embeddings.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:1].copy()}))
    change_fields(folder, type_vocab_size=1)
    source = source_of(folder)
    assert source.tokenizer.settings["one_type"] is True
    network, _ = loaded(folder)
    assert_close(network(ids, paddle.zeros_like(types)).numpy(), wanted)
    weights.save_folder(network, source, tmp_path / "again", ["x", "y", "z"])
    assert load_file(tmp_path / "again" / "model.safetensors")[name].shape == (1, HIDDEN)
    assert source_of(tmp_path / "again").shape == source.shape


def test_a_token_sees_its_own_text_only():
    segments = paddle.to_tensor([[1, 1, 2, 0], [0, 0, 0, 0]])
    mask = task_heads.block_diagonal_mask(segments, paddle.float32).numpy()
    assert mask.shape == (2, 1, 4, 4)
    seen = np.zeros((2, 4, 4), bool)
    seen[0, :2, :2] = seen[0, 2, 2] = True
    seen[0, 3, 3] = seen[1] = True  # padding sees padding: no token sees nothing
    np.testing.assert_array_equal(mask[:, 0] == 0, seen)
    assert np.exp(mask[:, 0][~seen].astype(np.float32)).max() == 0
    assert np.isfinite(mask.astype(np.float16)).all()


@pytest.mark.parametrize(("head", "place"), [("classifier", "first"), ("mlm", "positions")])
def test_rows_of_padding_alone_give_finite_answers(head, place, tmp_path):
    network, _ = loaded(write(tmp_path / "m", head=head), TASKS[head])
    ids = paddle.to_tensor([[2, 5, 3, 0], [0, 0, 0, 0]])
    segments = paddle.to_tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    nothing = paddle.zeros_like(ids)
    found = network(ids, nothing, nothing, segments, **{place: paddle.to_tensor([0, 4])})
    assert np.isfinite(found.numpy()).all()


@pytest.mark.parametrize("packed", [False, True])
def test_the_network_is_paddlenlps(packed):
    """With the same seed the same weights, logits and gradients."""
    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape.update(intermediate_size=32, initializer_range=0.3, num_labels=3)
    shape.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    paddle.seed(3)
    theirs = paddlenlp.BertForSequenceClassification(paddlenlp.BertConfig(**shape))
    paddle.seed(3)
    ours = task_heads.build("classification", bert.BertConfig(**shape))
    ids = paddle.to_tensor([[5, 6, 7, 8], [9, 10, 11, 0]])
    types = paddle.to_tensor([[0, 0, 1, 1], [0, 1, 1, 0]])
    if packed:  # both texts in one row
        row = [ids.reshape([1, 8]), types.reshape([1, 8]), paddle.arange(8).reshape([1, 8]) % 4]
        segments = paddle.to_tensor([[1, 1, 1, 1, 2, 2, 2, 0]])
        logits = ours(*row, segments, paddle.to_tensor([0, 4]))
    else:
        logits = ours(ids, types)
    wanted = theirs(ids, types)
    np.testing.assert_allclose(logits.numpy(), wanted.numpy(), atol=1e-6)
    for each in (logits, wanted):
        each.square().sum().backward()
    gradients = {name: one.grad for name, one in ours.network.named_parameters()}
    for name, one in theirs.named_parameters():
        np.testing.assert_allclose(gradients[name].numpy(), one.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize(("name", "used"), [("layers.0.norm1", 1e-12), ("layer.0.norm", 1e-5)])
def test_the_epsilon_of_paddlenlps_ernie(name, used):
    """Its layers have 1e-12, whatever config.json says; transformers' read it."""
    names = [f"{part}_embeddings.weight" for part in ("word", "position", "token_type")]
    files = {f"ernie.embeddings.{name}": np.ones((4, 2), np.float32) for name in names}
    files[f"ernie.encoder.{name}.weight"] = np.ones(2, np.float32)
    found = encoders.read(encoders.ERNIE, {"layer_norm_eps": 1e-5}, files)
    assert found.shape["layer_norm_eps"] == used
