"""`python -m kvlab` is the command `kvlab`.

`bench` goes its own way before typer is loaded: it must run on a machine that has nothing but torch and NumPy.
"""

import sys

if sys.argv[1:2] == ["bench"]:
    from kvlab.bench import main

    sys.exit(main(sys.argv[2:], prog="python -m kvlab bench"))

from kvlab.cli import app

app()
