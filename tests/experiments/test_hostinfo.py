"""Facts about the machine: complete, plain data, and nothing that names the machine or its users."""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime

from experiments.hostinfo import host_facts


def test_facts_are_json_and_typed():
    facts = host_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert isinstance(facts["cpu_model"], str)
    assert facts["cpu_model"]
    for name in ("cores_usable", "cores_online", "l1_bytes", "l2_bytes", "memory_bytes", "vector_bytes"):
        assert isinstance(facts[name], int)
        assert facts[name] > 0, name
    assert facts["python"] == platform.python_version()
    assert "numpy" in facts["packages"]
    assert datetime.fromisoformat(facts["date"]).tzinfo is not None
    assert len(facts["load_average"]) == 3


def test_facts_name_neither_host_nor_user():
    text = json.dumps(host_facts())
    assert os.path.expanduser("~") not in text
    assert f'"{platform.node()}"' not in text
    assert '"/' not in text
