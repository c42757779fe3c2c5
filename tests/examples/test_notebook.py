"""docs/examples/notebook.ipynb, as Jupyter runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [
        output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})
    ]
    assert len(tables) == 2
    run, answers = tables
    assert "<td>accuracy</td>" in run
    assert (
        answers.index("a charming cast") < answers.index("positive (") < answers.index("two hours")
    )
    (error,) = (output for output in outputs if output.output_type == "error")
    assert error.traceback == ["UserError: texts[1] is empty; leave it out"]
    shown = outputs[-1].data["text/plain"]
    similar, other = map(float, shown[shown.index("[[") + 2 : shown.index("]]")].split(","))
    assert similar > other
