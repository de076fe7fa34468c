"""Random windows over one axis or two, borders wider than the window among them."""

from dataclasses import dataclass

from hypothesis import strategies as st

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Sizes along each spatial axis."""

    spatial: Sizes
    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes


@st.composite
def windows(draw: st.DrawFn, most_padding: int = 5) -> Windows:
    rank = draw(st.integers(1, 2))

    def each(low: int, high: int) -> Sizes:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    kernel, dilation, stride = each(1, 5), each(1, 3), each(1, 2)
    padding = each(0, most_padding)
    least = [(k - 1) * d + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    spatial = tuple(draw(st.integers(max(1, low), max(1, low) + 45)) for low in least)
    return Windows(spatial, kernel, stride, padding, dilation)
