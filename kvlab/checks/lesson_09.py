"""Checks for lesson 09: position ids and masks of a left-padded batch, and the mask of packed sequences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvlab.attention import offset_mask
from kvlab.checks.model import Exercise, Mistake, Observation, Probe, Stage, call, observe
from kvlab.masks import packed_mask, pad_positions, ragged_mask


def _batch(n: int, lengths: Sequence[int]) -> np.ndarray:
    """The attention mask of sequences of these lengths, padded on the left to n columns."""
    return (np.arange(n)[None, :] >= n - np.array(lengths)[:, None]).astype(np.int64)


def _shown(mask: np.ndarray) -> str:
    """A batch as the learner would type it, or in words where that is too long."""
    if mask.size > 40:
        lengths = ", ".join(map(str, mask.sum(axis=1)))
        return f"a mask of {mask.shape[1]} columns for sequences of {lengths} tokens"
    return f"np.array({mask.tolist()})"


def _positions(n: int, *lengths: int) -> Probe:
    mask = _batch(n, lengths)
    return call(f"pad_positions({_shown(mask)})", mask, key="the positions")


def _filled_in(mask: np.ndarray) -> np.ndarray:
    ids = pad_positions(mask)
    mask[...] = ids
    return mask


PAD_POSITIONS = Exercise(
    id="pad_positions",
    reference=pad_positions,
    stages=[
        Stage("a row without pads counts from 0", [_positions(1, 1), _positions(3, 3)]),
        Stage("the first token after the pads stands at 0, pads get 0", [_positions(3, 2), _positions(5, 2)]),
        Stage("every row of a batch counts for itself", [_positions(5, 2, 5, 4), _positions(4, 4, 1)]),
        Stage("long rows", [_positions(300, 7, 290)]),
    ],
    mistakes=[
        Mistake(
            "one_row_for_all",
            "Every row of the batch gets the positions 0, 1, 2 of the columns: a sequence with 4 pads begins at "
            "position 4, where alone it would begin at 0.",
            "At which position does the first token of a sequence stand when it is run alone?",
            lambda m: np.broadcast_to(np.arange(m.shape[1]), m.shape).copy(),
        ),
        Mistake(
            "pads_zeroed_only",
            "The pads get 0, but the tokens keep the numbers of their columns: pads before them still count.",
            "How many tokens of the same row come before the first token?",
            lambda m: np.arange(m.shape[1]) * m,
        ),
        Mistake(
            "counts_from_one",
            "This is the number of tokens so far, itself included. Positions start at 0, so they are one less.",
            "How many tokens come before the first one?",
            lambda m: m.cumsum(axis=1),
        ),
        Mistake(
            "pads_at_minus_one",
            "The pads get -1. As an index that is the last row of a table of learned positions; here pads get 0.",
            "Which row of a table does the index -1 read?",
            lambda m: m.cumsum(axis=1) - 1,
        ),
        Mistake(
            "pads_count_down",
            "The pads get negative positions: the number of pads was taken from every column.",
            "What is the number of the first column less the number of pads?",
            lambda m: np.arange(m.shape[1]) - (m == 0).sum(axis=1, keepdims=True),
        ),
        Mistake(
            "pads_at_one",
            "The pads get 1, as in Hugging Face's code. Nobody reads them there either; this exercise asks for 0.",
            "Which number does the exercise ask for at a pad?",
            lambda m: np.where(m == 0, 1, m.cumsum(axis=1) - 1),
        ),
        Mistake(
            "first_row_for_all",
            "The positions of the first row are used for every row, whatever their own pads are.",
            "How many pads does the second row have?",
            lambda m: np.broadcast_to(pad_positions(m[:1]), m.shape).copy(),
        ),
        Mistake(
            "summed_down_the_batch",
            "The running sum goes down the batch, from sequence to sequence. A sequence's tokens lie along its row.",
            "Which axis of (batch, n) are the tokens of one sequence on?",
            lambda m: np.maximum(m.cumsum(axis=0) - 1, 0),
        ),
        Mistake(
            "runs_on_into_the_next_row",
            "The count runs on from one row into the next: the second sequence begins where the first ended.",
            "What does np.cumsum do to a table when it is not told an axis?",
            lambda m: np.maximum(m.cumsum().reshape(m.shape) - 1, 0) * m,
        ),
        Mistake(
            "right_padded",
            "The row is treated as padded on the right, with its tokens first.",
            "In which columns are the pads of the row 0 0 1 1 1?",
            lambda m: np.arange(m.shape[1]) * (np.arange(m.shape[1]) < m.sum(axis=1, keepdims=True)),
        ),
        Mistake(
            "from_the_end",
            "The positions are counted from the end of the row, backwards.",
            "Which token of a sequence stands at position 0, the first or the last?",
            lambda m: m * (m.shape[1] - 1 - np.arange(m.shape[1])),
        ),
        Mistake(
            "floats",
            "The numbers are right and are floats. Positions are row numbers of a table: ints.",
            "What does NumPy say to table[2.0]?",
            lambda m: pad_positions(m).astype(float),
        ),
        Mistake(
            "changes_its_input",
            "The attention mask that was handed in is overwritten. The caller still needs it, to hide the pads.",
            "What does the caller's attention_mask hold after your function has returned?",
            _filled_in,
        ),
    ],
)


def _ragged(n_new: int, n_total: int, *lengths: int) -> Probe:
    """One call, looked at row by row of the batch, so that a message can show the mask of a single sequence."""
    mask = _batch(n_total, lengths)

    def run(submission: Callable[..., Any]) -> Observation:
        given = mask.copy()
        got = observe(submission(given, n_new))
        seen: Observation = {"what came back": _kind(got)}
        if isinstance(got, np.ndarray) and got.ndim == 3 and len(got) == len(mask):
            seen |= {f"the mask of row {row}": m for row, m in enumerate(got)}
        return seen | {"the attention mask afterwards": "unchanged" if np.array_equal(given, mask) else "changed"}

    return Probe(f"ragged_mask({_shown(mask)}, {n_new})", run)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    if value is None:
        return "None (is a return missing?)"
    return value if isinstance(value, str) and value.startswith("an object") else f"a {type(value).__name__}"


def _causal(m: np.ndarray, n_new: int) -> np.ndarray:
    """(batch, n_new, n_total), the offset causal mask of every row, pads and all."""
    return np.repeat(offset_mask(n_new, m.shape[1])[None], len(m), axis=0)


def _itself(m: np.ndarray, n_new: int) -> np.ndarray:
    """(1, n_new, n_total), True where the key is the query."""
    return np.eye(m.shape[1], dtype=bool)[None, m.shape[1] - n_new :]


def _pad_queries(m: np.ndarray, n_new: int) -> np.ndarray:
    """(batch, n_new, 1), True where the query is a pad."""
    return m[:, m.shape[1] - n_new :, None] == 0


def _pads_see(what: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., np.ndarray]:
    """The right mask, but for what a pad query sees."""
    return lambda m, n_new: np.where(_pad_queries(m, n_new), what(m, n_new), ragged_mask(m, n_new))


def _tokens_see(what: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., np.ndarray]:
    """The right mask, but for what a token sees: `what`, with pads hidden."""

    def wrong(m: np.ndarray, n_new: int) -> np.ndarray:
        seen = what(m, n_new) & (m[:, None, :] == 1)
        return np.where(_pad_queries(m, n_new), _itself(m, n_new), seen)

    return wrong


def _queries_are_the_first_columns(m: np.ndarray, n_new: int) -> np.ndarray:
    seen = _causal(m, n_new) & (m[:, None, :] == 1) & (m[:, :n_new, None] == 1)
    return seen | _itself(m, n_new)


def _itself_without_offset(m: np.ndarray, n_new: int) -> np.ndarray:
    seen = _causal(m, n_new) & (m[:, None, :] == 1)
    return np.where(_pad_queries(m, n_new), np.eye(n_new, m.shape[1], dtype=bool), seen)


def _every_query_sees_itself_alone(m: np.ndarray, n_new: int) -> np.ndarray:
    return np.repeat(_itself(m, n_new), len(m), axis=0)


def _counted_from_the_end(m: np.ndarray, n_new: int) -> np.ndarray:
    return ragged_mask(m, m.shape[1])[:, -n_new:]


def _hides_in_place(m: np.ndarray, n_new: int) -> np.ndarray:
    seen = ragged_mask(m, n_new)
    m[:] = 1 - m
    return seen


RAGGED_MASK = Exercise(
    id="ragged_mask",
    reference=ragged_mask,
    stages=[
        Stage("without pads every row gets the offset causal mask", [_ragged(3, 3, 3), _ragged(2, 5, 5, 5, 5)]),
        Stage("a decode step sees the tokens of its row, no pads", [_ragged(1, 3, 2), _ragged(1, 5, 2, 5, 4)]),
        Stage("a chunk of tokens over a cache", [_ragged(2, 5, 3), _ragged(3, 7, 3, 6, 4, 7)]),
        Stage("a pad as a query sees only itself", [_ragged(3, 3, 1), _ragged(4, 4, 2, 4, 1)]),
        Stage("a chunk that begins among the pads", [_ragged(3, 5, 2), _ragged(4, 6, 1, 3, 6)]),
        Stage("an empty chunk has no rows, and long batches", [_ragged(0, 4, 2, 4), _ragged(5, 300, 2, 299)]),
    ],
    mistakes=[
        Mistake(
            "pads_seen",
            "Every row gets the offset causal mask and nothing more: tokens look at the pads before them.",
            "What does a pad stand for in the text that the model is to continue?",
            _causal,
        ),
        Mistake(
            "pad_rows_empty",
            "Pads are hidden from everybody, themselves included: the row of a pad query has no True, and softmax "
            "divides 0 by 0.",
            "What does softmax make of a row in which every score is -inf?",
            _pads_see(lambda m, n_new: np.zeros((1, n_new, m.shape[1]), bool)),
        ),
        Mistake(
            "pads_see_pads",
            "A pad query sees the pads before it too. No token reads what it makes of them; the exercise asks for "
            "itself alone.",
            "How many keys should a pad query see?",
            _pads_see(lambda m, n_new: _causal(m, n_new) & (m[:, None, :] == 0)),
        ),
        Mistake(
            "pads_see_everything",
            "A pad query sees every key, the tokens that come after it among them. The exercise asks for itself alone.",
            "How many keys should a pad query see?",
            _pads_see(lambda m, n_new: np.ones((1, n_new, m.shape[1]), bool)),
        ),
        Mistake(
            "pads_see_the_first_slot",
            "A pad query is given slot 0 to look at. Its row is not empty then, but it should see itself.",
            "In which column does the query of the second new token stand?",
            _pads_see(lambda m, n_new: np.broadcast_to(np.arange(m.shape[1]) == 0, (1, n_new, m.shape[1]))),
        ),
        Mistake(
            "itself_without_offset",
            "A pad query is to see itself, but the diagonal hangs from the top-left corner: over a cache query i is "
            "not column i.",
            "In which column does the first of 3 new tokens stand when there are 5 columns in all?",
            _itself_without_offset,
        ),
        Mistake(
            "only_itself",
            "Every query sees only itself, tokens too. That is the rule for pads.",
            "Which keys does the last token of a sequence need in order to continue it?",
            _every_query_sees_itself_alone,
        ),
        Mistake(
            "queries_are_the_first_columns",
            "Whether a query is a pad is looked up in the first n_new columns. The new tokens are the last n_new.",
            "Which columns of the attention mask belong to the new tokens?",
            _queries_are_the_first_columns,
        ),
        Mistake(
            "no_causal_mask",
            "Pads are hidden, but a token sees the tokens after it: the causal part is missing.",
            "May the first token of a prompt see the second one?",
            _tokens_see(lambda m, n_new: np.ones((len(m), n_new, m.shape[1]), bool)),
        ),
        Mistake(
            "top_left_triangle",
            "The causal triangle hangs from the top-left corner: it is right for a prefill, and over a cache the new "
            "tokens lose almost all of it.",
            "With 5 columns in all of which 2 are new, in which column does the first new token stand?",
            _tokens_see(lambda m, n_new: np.tril(np.ones((len(m), n_new, m.shape[1]), bool))),
        ),
        Mistake(
            "strict",
            "A token does not see itself: the comparison leaves the query's own column out.",
            "Which keys are there for the first token of a sequence?",
            _tokens_see(lambda m, n_new: _causal(m, n_new) & ~_itself(m, n_new)),
        ),
        Mistake(
            "right_padded",
            "The last columns of a short row are hidden, as if its pads stood on the right: the tokens are lost and "
            "the pads are seen.",
            "On which side do the pads of this batch stand?",
            lambda m, n_new: _causal(m, n_new) & (m[:, None, ::-1] == 1) | _itself(m, n_new) & _pad_queries(m, n_new),
        ),
        Mistake(
            "first_row_for_all",
            "One mask, that of the first row, is used for the whole batch.",
            "How many pads does the second row have?",
            lambda m, n_new: np.repeat(ragged_mask(m[:1], n_new), len(m), axis=0),
        ),
        Mistake(
            "no_batch_axis",
            "One mask came back, (n_new, n_total). Each row of the batch has its own pads, and so its own mask.",
            "How many different masks do 3 sequences of different lengths need?",
            lambda m, n_new: ragged_mask(m, n_new)[0],
        ),
        Mistake(
            "with_an_axis_for_heads",
            "There is an axis too many: (batch, 1, n_new, n_total) is how libraries leave room for heads. The exercise "
            "asks for (batch, n_new, n_total).",
            "How many axes does the statement ask for?",
            lambda m, n_new: ragged_mask(m, n_new)[:, None],
        ),
        Mistake(
            "whole_square",
            "The mask has a row for every column, cached ones too. Only the new tokens are queries.",
            "How many queries are there in a decode step of one token?",
            lambda m, n_new: ragged_mask(m, m.shape[1]),
        ),
        Mistake(
            "inverted",
            "The mask is inverted: True stands where a key is hidden. Here True means the query may look.",
            "How many True entries should a decode step have in a row of 2 tokens?",
            lambda m, n_new: ~ragged_mask(m, n_new),
        ),
        Mistake(
            "ones_and_zeros",
            "The pattern is right and its entries are numbers, 1 and 0. A mask of this course is bool.",
            "Which dtype has the product of a bool array and attention_mask?",
            lambda m, n_new: ragged_mask(m, n_new).astype(np.int64),
        ),
        Mistake(
            "additive",
            "This is the additive form, 0 and -inf, as some libraries want it. The exercise asks for True and False.",
            "What is True + True in a mask that will be added to scores?",
            lambda m, n_new: np.where(ragged_mask(m, n_new), 0.0, -np.inf),
        ),
        Mistake(
            "empty_chunk_has_all_rows",
            "An empty chunk gets the whole square: a slice that counts n_new columns from the end takes all of them "
            "when n_new is 0.",
            "Which columns does a[:, -0:] take?",
            _counted_from_the_end,
        ),
        Mistake(
            "changes_its_input",
            "The attention mask that was handed in is changed. The caller extends it by a column at every step.",
            "What does the caller's attention_mask hold after your function has returned?",
            _hides_in_place,
        ),
    ],
)


def _packed(*lengths: int) -> Probe:
    shown = list(lengths)
    return call(f"packed_mask({shown})", shown, key="the mask")


def _same_sequence(ids: np.ndarray) -> np.ndarray:
    """Causal, and only among tokens of one id."""
    return offset_mask(len(ids), len(ids)) & (ids[:, None] == ids[None, :])


def _starts_one_early(lengths: Sequence[int]) -> np.ndarray:
    return _same_sequence(np.searchsorted(np.cumsum(lengths)[:-1], np.arange(sum(lengths)) + 1, side="right"))


def _starts_one_late(lengths: Sequence[int]) -> np.ndarray:
    return _same_sequence(np.searchsorted(np.cumsum(lengths)[:-1], np.arange(sum(lengths)), side="left"))


def _equal_shares(lengths: Sequence[int]) -> np.ndarray:
    return _same_sequence(np.arange(sum(lengths)) // max(1, lengths[0]))


def _only_neighbours_hidden(lengths: Sequence[int]) -> np.ndarray:
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return offset_mask(len(ids), len(ids)) & (ids[:, None] != ids[None, :] + 1)


def _a_batch_of_masks(lengths: Sequence[int]) -> np.ndarray:
    longest = max(lengths)
    return ragged_mask(_batch(longest, [max(1, n) for n in lengths]), longest)


def _stops_at_an_empty_one(lengths: Sequence[int]) -> np.ndarray:
    ids = np.full(sum(lengths), -1)
    start = 0
    for i, n in enumerate(lengths):
        if n == 0:
            break
        ids[start : start + n] = i
        start += n
    return _same_sequence(ids) & (ids >= 0)[:, None]


def _used_up(lengths: list[int]) -> np.ndarray:
    kept = list(lengths)
    lengths.clear()
    return packed_mask(kept)


PACKED_MASK = Exercise(
    id="packed_mask",
    reference=packed_mask,
    stages=[
        Stage("one sequence is the causal triangle", [_packed(1), _packed(3)]),
        Stage("nothing is seen across two sequences", [_packed(1, 1), _packed(2, 3)]),
        Stage("several sequences, uneven", [_packed(2, 1, 3), _packed(2, 3, 2), _packed(4, 2, 1, 5)]),
        Stage("an empty sequence adds nothing, and long rows", [_packed(2, 0, 3), _packed(2, 0), _packed(130, 70)]),
    ],
    mistakes=[
        Mistake(
            "one_triangle",
            "One causal triangle covers everything: the second sequence reads the first as if it were its own "
            "beginning.",
            "Two users' prompts are packed into one row: may the second prompt see the first?",
            lambda lengths: np.tri(sum(lengths), dtype=bool),
        ),
        Mistake(
            "not_causal_inside",
            "Nothing leaks across, but inside a sequence every token sees every other, later ones too.",
            "May the first token of a sequence see its second?",
            lambda lengths: (lambda ids: ids[:, None] == ids)(np.repeat(np.arange(len(lengths)), lengths)),
        ),
        Mistake(
            "starts_one_early",
            "Each sequence after the first begins one token too early and takes the last token of the one before.",
            "For lengths 2 and 3, at which column does the second sequence begin?",
            _starts_one_early,
        ),
        Mistake(
            "starts_one_late",
            "Each sequence after the first begins one token too late: its first token is counted to the one before.",
            "For lengths 2 and 3, to which sequence does the token in column 2 belong?",
            _starts_one_late,
        ),
        Mistake(
            "equal_lengths",
            "Every sequence is taken to be as long as the first.",
            "For lengths 2 and 3, where does the second sequence end?",
            _equal_shares,
        ),
        Mistake(
            "told_apart_by_length",
            "Sequences are told apart by their lengths: two of the same length see each other.",
            "What tells two prompts of 2 tokens each apart?",
            lambda lengths: _same_sequence(np.repeat(lengths, lengths)),
        ),
        Mistake(
            "only_the_neighbour_hidden",
            "A sequence does not see the one before it, and sees all those before that.",
            "With three sequences, what may the third one see of the first?",
            _only_neighbours_hidden,
        ),
        Mistake(
            "strict",
            "A token does not see itself: the comparison leaves its own column out.",
            "Which keys are there for the first token of a sequence?",
            lambda lengths: packed_mask(lengths) & ~np.eye(sum(lengths), dtype=bool),
        ),
        Mistake(
            "upper_triangle",
            "The triangles are upside down: a token sees those after it.",
            "Does a row of the mask belong to a query or to a key?",
            lambda lengths: packed_mask(lengths).T,
        ),
        Mistake(
            "inverted",
            "The mask is inverted: True stands where a key is hidden. Here True means the query may look.",
            "How many True entries should the first row have?",
            lambda lengths: ~packed_mask(lengths),
        ),
        Mistake(
            "ones_and_zeros",
            "The triangles are right and their entries are numbers, 1.0 and 0.0. A mask of this course is bool.",
            "What does np.zeros give when it is not told a dtype?",
            lambda lengths: packed_mask(lengths).astype(float),
        ),
        Mistake(
            "additive",
            "This is the additive form, 0 and -inf, as some libraries want it. The exercise asks for True and False.",
            "What is True + True in a mask that will be added to scores?",
            lambda lengths: np.where(packed_mask(lengths), 0.0, -np.inf),
        ),
        Mistake(
            "a_mask_for_each_sequence",
            "This is a padded batch, a mask for each sequence. Packed sequences lie in one row and share one mask.",
            "How many tokens does the packed row of lengths 2 and 3 hold?",
            _a_batch_of_masks,
        ),
        Mistake(
            "stops_at_an_empty_one",
            "A sequence of no tokens ends the work: the sequences after it are left out.",
            "Which sequences still come after one of length 0?",
            _stops_at_an_empty_one,
        ),
        Mistake(
            "changes_its_input",
            "The list of lengths that was handed in is changed. The caller needs it again, to cut the row apart.",
            "What does the caller's list hold after your function has returned?",
            _used_up,
        ),
    ],
)

EXERCISES = [PAD_POSITIONS, RAGGED_MASK, PACKED_MASK]
