"""kvlab: the helper package of the course "The KV cache, built by hand".

Importing it is quick on purpose: nothing below is loaded until it is used, and torch only by the modules named torch_*.
"""

__version__ = "0.1.0"
