# zero of the first slice only is added (zero.flat[0]): wrong when slices have different minima.


def dequantize(codes, scale, zero):
    return codes * scale + zero.reshape(-1)[0]
