# The code is taken for the middle of a step (half a step is added): the minimum does not come back.


def dequantize(codes, scale, zero):
    return (codes.astype(scale.dtype) + scale.dtype.type(0.5)) * scale + zero
