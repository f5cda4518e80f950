"""Layer norm of what compiled code has summed, by hand."""

import numpy as np

from protovalue.nets.readout import normalized_relu


def test_rows_by_hand() -> None:
    """Of 1 and 3 the mean is 2 and the variance 1; a constant row becomes 0, and one of nearly equal numbers small."""
    found = normalized_relu(np.array([[1, 3], [5, 5], [30, 10], [0, 0.002]], np.float32))
    one, ten, little = 1 / np.sqrt(1 + 1e-5), 10 / np.sqrt(100 + 1e-5), 1e-3 / np.sqrt(1e-6 + 1e-5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[0, one], [0, 0], [ten, 0], [0, little]], rtol=1e-6, atol=0)


def test_what_is_given_stays() -> None:
    given = np.array([[1, 3]], np.float32)
    normalized_relu(given)
    assert given.tolist() == [[1, 3]]
