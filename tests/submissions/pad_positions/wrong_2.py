# Pads get 1 (the Hugging Face masked_fill habit), wrong for every row with a pad.


def pad_positions(attention_mask):
    position_ids = attention_mask.astype(int).cumsum(-1) - 1
    position_ids[attention_mask == 0] = 1
    return position_ids
