"""`python -m kvlab` is the command `kvlab`."""

from kvlab.cli import app

app()
