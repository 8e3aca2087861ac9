"""Wrong: truncates a float sum of thirds, halves and sixths, right for n = 8 and off by one for some n."""


def score_counts(n):
    return int(n**3 / 3 + n**2 / 2 + n / 6), int(n**2 / 2 + n / 2)
