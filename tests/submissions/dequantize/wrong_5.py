# zero is overwritten: the sum is written into the caller's array when the shapes agree (one number to a slice).


def dequantize(codes, scale, zero):
    out = codes * scale
    if out.shape == zero.shape:
        zero += out
        return zero
    return out + zero
