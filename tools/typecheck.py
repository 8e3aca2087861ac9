"""The type checker that runs kvlab's signatures under pytest: beartype, taking an int for a float as Python does."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
