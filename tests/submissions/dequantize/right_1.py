def dequantize(codes, scale, zero):
    return codes.astype(scale.dtype) * scale + zero
