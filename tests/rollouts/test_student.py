"""Reference values are SciPy's (stats.t.sf and stats.t.ppf)."""

import math

import pytest

from nemo_gym.rollouts.student import t_quantile, two_sided_p


@pytest.mark.parametrize(
    ("df", "exact"),
    [
        (1, 12.706204736174694),
        (2, 4.302652729749462),
        (3, 3.1824463052837078),
        (4, 2.7764451051977934),
        (5, 2.5705818356363146),
        (10, 2.228138851986274),
        (30, 2.0422724563012378),
        (1000, 1.9623390808264083),
    ],
)
def test_the_quantile(df, exact):
    assert t_quantile(df) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("df", "t", "exact"),
    [(1, 1.0, 0.5), (4, 2.5, 0.06676654481198814), (47, 1.3, 0.19994048291406474), (999, 3.0, 0.0027667764601477917)],
)
def test_the_p_value(df, t, exact):
    assert two_sided_p(t, df) == pytest.approx(exact, rel=1e-9)
    assert two_sided_p(-t, df) == two_sided_p(t, df)


def test_the_ends():
    assert two_sided_p(0.0, 5) == 1.0
    assert two_sided_p(math.inf, 5) == 0.0
    assert 0 <= two_sided_p(1e6, 3) < 1e-15
    assert t_quantile(1_000_000) == pytest.approx(1.959966, abs=1e-5)
    assert t_quantile(10, 0.5) == pytest.approx(0.6998120613124291, rel=1e-9)


@pytest.mark.parametrize("wrong", [lambda: two_sided_p(1.0, 0), lambda: t_quantile(3, 1.0), lambda: t_quantile(3, 0.0)])
def test_what_is_no_question(wrong):
    with pytest.raises(ValueError, match=r"degrees|level"):
        wrong()
