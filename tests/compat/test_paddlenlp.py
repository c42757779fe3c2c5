"""BERT's part of PaddleNLP alone."""

from __future__ import annotations

import pytest
from fresh import python


@pytest.mark.slow
def test_only_what_is_needed_of_paddlenlp_is_imported_and_the_rest_still_can_be():
    """Signals are left to Python, as by PaddleNLP itself."""
    code = (
        "import re, signal, sys\n"
        "from fleetbert.compat import paddlenlp as compat\n"
        "from fleetbert.models import heads, weights\n"
        "heavy = ('paddlenlp', 'paddlenlp.taskflow', 'pandas', 'sklearn', 'datasets', 'fastapi')\n"
        "print([name for name in (*heavy, 'jieba', 'scipy') if name in sys.modules])\n"
        "auto = compat.auto_classes()\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "caught = int(re.search('SigCgt:\\t(.*)', open('/proc/self/status').read())[1], 16)\n"
        "print([each.name for each in signal.Signals if caught >> each - 1 & 1 and each < 32])\n"
        "import paddlenlp\n"
        "print(paddlenlp.Taskflow.__name__)\n"
        "whole = paddlenlp.transformers\n"
        "print(whole.BertConfig is heads.BertConfig is weights.BertConfig)\n"
        "print(auto == (whole.AutoTokenizer, whole.AutoModel))\n"
    )
    done = python(code)
    assert done.stdout == "[]\n[]\n['SIGINT']\nTaskflow\nTrue\nTrue\n", done.stderr
