"""Pictures in their own proportions: as many patches as a row has room for, in a grid of the picture's shape."""

from typing import NamedTuple

import numpy as np


class Grid(NamedTuple):
    """Rows and columns of patches."""

    rows: int
    columns: int


def grid_of(height: int, width: int, patches: int) -> Grid:
    """Returns the grid of at most `patches` for a picture of this height and width: the largest of its proportions.

    Columns are rounded, so the proportions are off by half a patch at most, but where a picture is too long for them.
    """

    def made(rows: int) -> Grid:
        return Grid(rows, max(1, round(rows * width / height)))

    grids = [grid for grid in map(made, range(1, patches + 1)) if grid.rows * grid.columns <= patches]
    return max(grids, key=lambda grid: grid.rows * grid.columns) if grids else Grid(1, patches)


def tiled(pixels: np.ndarray, side: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns an array of `shape` whose patches, rows of them one after another, begin with those of the picture."""
    (height, width, channels), (rows, columns) = shape, (length // side for length in pixels.shape[:2])
    patches = np.zeros((height // side * (width // side), side, side, channels), pixels.dtype)
    cut = pixels.reshape(rows, side, columns, side, channels).transpose(0, 2, 1, 3, 4)
    patches[: rows * columns] = cut.reshape(-1, side, side, channels)
    laid = patches.reshape(height // side, width // side, side, side, channels).transpose(0, 2, 1, 3, 4)
    return laid.reshape(shape)


def untiled(images: np.ndarray, side: int, grid: Grid) -> np.ndarray:
    """Returns the picture that `tiled` took."""
    height, width, channels = images.shape
    cut = images.reshape(height // side, side, width // side, side, channels).transpose(0, 2, 1, 3, 4)
    patches = cut.reshape(-1, side, side, channels)[: grid.rows * grid.columns]
    laid = patches.reshape(*grid, side, side, channels).transpose(0, 2, 1, 3, 4)
    return laid.reshape(grid.rows * side, grid.columns * side, channels)
