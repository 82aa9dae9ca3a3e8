"""Contrast and color vision: whether colors are legible, and distinguishable with color vision deficiencies.

Contrast is that of WCAG 2. Deficiencies are simulated on linear RGB with the matrices of Machado, Oliveira and Fernandes (2009) at full
severity; the distance is Euclidean in OKLab, where 0.02 is about a just noticeable difference.
"""

SIMULATIONS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_CONES = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566), (0.0883024619, 0.2817188376, 0.6299787005))
TO_LAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099), (0.0259040371, 0.7827717662, -0.8086757660))


def product(matrix, vector):
    return [sum(a * x for a, x in zip(row, vector)) for row in matrix]


def linear(colour):
    """Linear RGB of `#rrggbb` or a triple of 0 to 255."""
    if isinstance(colour, str):
        colour = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    shares = [value / 255 for value in colour]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]


def contrast(a, b):
    light, dark = sorted((sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear(c))) for c in (a, b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def oklab(colour, simulation):
    seen = [max(0.0, x) for x in product(SIMULATIONS[simulation], linear(colour))]
    return product(TO_LAB, [x ** (1 / 3) for x in product(TO_CONES, seen)])


def distance(a, b):
    """The smallest distance between two colors with any color vision."""
    pairs = ((oklab(a, name), oklab(b, name)) for name in SIMULATIONS)
    return min(sum((x - y) ** 2 for x, y in zip(p, q)) ** 0.5 for p, q in pairs)
