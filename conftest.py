"""Every notebook kernel, test worker and subprocess that pytest starts runs without a network."""

import os
from pathlib import Path

OFFLINE = str(Path(__file__).parent / "tests" / "offline")

before = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", OFFLINE)]
os.environ["PYTHONPATH"] = os.pathsep.join([OFFLINE, *before])
