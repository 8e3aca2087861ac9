"""`kvlab bench decode`: how fast one token is decoded, beside the floor that the memory sets and beside other engines.

`lean` is the decoder that is timed, laid out for speed; `peers` are Hugging Face and llama.cpp on the same weights;
`rows` makes figures of the times; `command` is the command line; `show` reads the results back for lessons and README.
Nothing in this package needs more than torch and NumPy until a peer is asked for.
"""
