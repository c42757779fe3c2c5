"""What is said of a table's labels."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert.data import labels, written


def test_labels_that_are_numbers_are_in_their_order():
    """As scikit-learn's encoder sorts integers; a mixture, as texts."""
    given = ["10", "2", "1", "-3", "2", "+4"]
    assert labels.in_order(given) == ["-3", "1", "2", "+4", "10"]
    assert labels.in_order(["10.0", "9.5"]) == ["9.5", "10.0"]
    assert labels.in_order(["10", "2", "none"]) == ["10", "2", "none"]
    assert labels.in_order(["٣", "10"]) == ["10", "٣"]
    assert labels.in_order(["02", "2", "1"]) == ["1", "02", "2"]


@pytest.mark.parametrize("given", [[0, 1], np.array([0, 1]), ("0", "1"), iter([0, "1"])])
def test_labels_of_a_caller_are_written_as_in_tables(given):
    assert labels.given(given) == ["0", "1"]
    assert labels.given([True, False]) == ["true", "false"]


def test_a_row_of_0_and_1_names_no_labels():
    for row in ([0, 1, 0], [True, False, True]):
        with pytest.raises(written.LineError, match="a 0 or 1 for each label; give the names"):
            written.names(row)
    assert written.names([0, 1]) == '["0", "1"]'
    assert written.names(["a", "b", "a"]) == '["a", "b"]'


def test_few_labels_are_all_named_with_the_rarest_last():
    told = labels.describe(["bad", "good", "so so"], np.array([7, 30, 5]))
    assert told == "3 labels: 'good' 30, 'bad' 7, rarest 'so so' 5"


def test_of_many_the_most_frequent_and_the_rarest_are_named():
    names = [f"class {number}" for number in range(7051)]
    told = labels.describe(names, np.arange(7051) + 1)
    assert told.startswith("7051 labels: 'class 7050' 7051, 'class 7049' 7050, ")
    assert told.endswith(", ..., rarest 'class 0' 1")
    assert len(told) < 250
    assert len(labels.describe(["x" * 5000, "y"], np.array([1, 1]))) < 80


@pytest.mark.parametrize(
    ("names", "numbers", "sentence"),
    [
        (["POS", "Pos", "neg", "pos"], [1, 2, 90, 80], "'POS' 1 and 'Pos' 2 and 'pos' 80"),
        (["so so", "soso"], [90, 80], "by case or blanks only: 'so so' 90 and 'soso' 80;"),
        (["so\u3000so", "so so"], [90, 80], "by case or blanks only"),
        (["ＡＢ", "ab"], [90, 80], "by case or blanks only"),
        (["0.25", "1"], [90, 80], "numbers with fractions: '0.25';"),
        (["-1.0", "1.0"], [90, 80], "numbers with fractions: '-1.0', '1.0';"),
        (["1,5", "2.5e-3"], [90, 80], "numbers with fractions: '1,5', '2.5e-3';"),
        (["a", "b", "c"], [6, 6, 6], None),
        (["-1", "0", "1", "10"], [9, 9, 9, 9], None),
        (["v1.2.3", "1.2b", "3.x", "."], [9, 9, 9, 9], None),
        (["好", "坏", "一般"], [9, 9, 9], None),
        (["a", "b", "c"], [6, 6, 5], "3 labels for 17 texts are more than one for 6 texts"),
    ],
)
def test_what_looks_like_a_mistake_is_told(names, numbers, sentence):
    told = labels.warnings(names, np.array(numbers))
    assert len(told) == (sentence is not None)
    assert sentence is None or sentence in told[0]


def test_a_label_that_is_written_otherwise_is_found():
    assert labels.alike("POS ", ["neg", "pos"]) == " (is it 'pos', written otherwise?)"
    assert labels.alike("bad", ["neg", "pos"]) == ""
