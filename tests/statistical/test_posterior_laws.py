"""A regression whose constrained posterior is known: on all rows and on minibatches; and estimates of r are right on average."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calibrated import check_law, discrepancy
from scipy.linalg import null_space, solve_discrete_lyapunov

import ogradient as og
from ogradient import geometry
from ogradient.geometry.correction import _both_halves
from ogradient.problems import KnownProblem, Moment

pytestmark = pytest.mark.statistical

N, B, DIM, NOISE, LEVEL = 64, 16, 4, 4.0, 0.5
_rng = np.random.default_rng(0)
X = _rng.normal(size=(N, DIM)) + np.array([1.0, -0.5, 0.5, 0.0])
Y = X @ _rng.normal(size=DIM) + NOISE * _rng.normal(size=N)

# w ~ N(0, I) and y = Xw + noise make a Gaussian posterior; given a·w = LEVEL, a the mean row, it is Gaussian again.
PRECISION = np.eye(DIM) + X.T @ X / NOISE**2
ROW = X.mean(axis=0)
_free = np.linalg.inv(PRECISION)
_centre = _free @ X.T @ Y / NOISE**2
_gain = _free @ ROW / (ROW @ _free @ ROW)
MEAN = _centre + _gain * (LEVEL - ROW @ _centre)
COVARIANCE = _free - np.outer(_gain, ROW @ _free)
SPREAD = np.sqrt(np.diag(COVARIANCE))
PAIRS = [(i, j) for i in range(DIM) for j in range(i + 1)]


def log_likelihood(w, batch):
    return -0.5 * jnp.sum((batch[1] - batch[0] @ w) ** 2) / NOISE**2


def regression(loglikelihood_fn=log_likelihood, **sizes):
    """Under the mean prediction at its level, which is the same row a for all, if all rows are in it."""
    problem = og.posterior(
        lambda w: -0.5 * jnp.sum(w**2),
        loglikelihood_fn,
        (jnp.float32(X), jnp.float32(Y)),
        equality=lambda w, batch: jnp.mean(batch[0] @ w) - LEVEL,
        **sizes,
    )
    start = lambda key, n: 2 * jax.random.normal(key, (n, DIM))
    moments = {f"w_{i}": Moment(lambda w, i=i: w[i], float(MEAN[i])) for i in range(DIM)}
    off = lambda w, i: w[i] - float(MEAN[i])
    moments |= {
        f"cov w_{i} w_{j}": Moment(lambda w, i=i, j=j: off(w, i) * off(w, j), COVARIANCE[i, j]) for i, j in PAIRS
    }
    moments["g²"] = Moment(lambda w: (jnp.float32(ROW) @ w - LEVEL) ** 2, 0.0)
    return KnownProblem("regression", problem, DIM, start, start, moments)


def covariance_of_steps(step_size, batch_size=None):
    """What Euler steps of a linear drift make of the covariance, on all rows or with the noise of batches.

    Along the set, w ← w − ηAw + √(2η)ξ + ηζ with ζ the error of a batch's score, of covariance V = N²/B Cov(x_i r_i)/σ⁴: the
    stationary S has S = (I − ηA)S(I − ηA) + 2ηI + η²V. Means are unmoved, since batches are unbiased and the drift is linear.
    """
    along = null_space(ROW[None])
    noise = 2 * step_size * np.eye(DIM) + step_size**2 * noise_of_batches(batch_size)
    change = np.eye(DIM - 1) - step_size * along.T @ PRECISION @ along
    return along @ solve_discrete_lyapunov(change, along.T @ noise @ along) @ along.T


def noise_of_batches(batch_size):
    """V, the covariance of a batch's score."""
    rows = X * (Y - X @ MEAN)[:, None] / NOISE**2
    return np.zeros((DIM, DIM)) if batch_size is None else N**2 / batch_size * np.cov(rows.T, bias=True)


def covariance_with_momentum(step_size, friction, batch_size=None):
    """The same of w and p with B A O A: p ← p − h(Aw − ζ), w ← w + ½hp, p ← cp + √(1 − c²)ξ, w ← w + ½hp."""
    along, h, c = null_space(ROW[None]), step_size, np.exp(-friction * step_size)
    one, none = np.eye(DIM - 1), np.zeros((DIM - 1, DIM - 1))
    kick = np.block([[one, none], [-h * along.T @ PRECISION @ along, one]])
    drift, forget = np.block([[one, h / 2 * one], [none, one]]), np.block([[one, none], [none, c * one]])
    after = drift @ forget @ drift
    score, fresh = (np.block([[none, none], [none, v]]) for v in (along.T @ noise_of_batches(batch_size) @ along, one))
    noise = h**2 * after @ score @ after.T + (1 - c**2) * drift @ fresh @ drift.T
    return along @ solve_discrete_lyapunov(after @ kick, noise)[: DIM - 1, : DIM - 1] @ along.T


def budgets(covariance=COVARIANCE):
    """None for means but rounding. For covariances twice the excess above, since V changes a little with w. For g² rounding."""
    excess = covariance - COVARIANCE
    assert np.all(np.diag(excess) > -1e-9)
    assert np.all(np.diag(excess) < 0.1 * SPREAD**2), "take smaller steps: this budget would hide too much"
    bias = {f"w_{i}": 1e-4 for i in range(DIM)} | {"g²": 1e-9}
    return bias | {f"cov w_{i} w_{j}": 2 * abs(excess[i, j]) + 1e-4 for i, j in PAIRS}


RESOLUTION = {f"w_{i}": 0.1 * SPREAD[i] for i in range(DIM)}
RESOLUTION |= {f"cov w_{i} w_{j}": 0.1 * SPREAD[i] * SPREAD[j] for i, j in PAIRS}
RESOLUTION["g²"] = 1e-9
RUN = {"resolution": RESOLUTION, "num_chains": 512}


def test_o_langevin_on_all_rows():
    known, eta = regression(), 0.02
    check_law(
        known,
        og.o_langevin(known.problem, eta),
        bias=budgets(covariance_of_steps(eta)),
        num_warmup=200,
        num_steps=2000,
        **RUN,
    )


def test_chmc_on_all_rows():
    known = regression()
    algorithm = og.chmc(known.problem, 0.3, num_integration_steps=3)
    check_law(known, algorithm, bias=budgets(), num_warmup=50, num_steps=300, thinning=1, **RUN)


def test_o_kinetic_on_all_rows():
    """Its error is none for a Gaussian on a flat set."""
    known, h = regression(), 0.3
    np.testing.assert_allclose(covariance_with_momentum(h, 1.0), COVARIANCE, atol=1e-12)
    check_law(known, og.o_kinetic(known.problem, h), bias=budgets(), num_warmup=200, num_steps=2000, **RUN)


def check_minibatches(known, eta=0.004):
    run = {"num_warmup": 500, "num_steps": 4000, "thinning": 20}
    check_law(known, og.o_langevin(known.problem, eta), bias=budgets(covariance_of_steps(eta, B)), **run, **RUN)


def test_o_langevin_on_minibatches_with_the_constraint_on_all_rows():
    check_minibatches(regression(batch_size=B, constraint_batch_size=N))


def test_o_kinetic_on_minibatches_with_the_constraint_on_all_rows():
    """With friction enough, the noise of batches is a small part of what friction gives back."""
    known, h, friction = regression(batch_size=B, constraint_batch_size=N), 0.05, 8.0
    bias = budgets(covariance_with_momentum(h, friction, B))
    run = {"num_warmup": 500, "num_steps": 4000, "thinning": 20}
    check_law(known, og.o_kinetic(known.problem, h, friction=friction), bias=bias, **run, **RUN)


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="negative control: batches that count once, not N/B times"
)
def test_leaving_out_the_scale_is_seen():
    unscaled = lambda w, batch: log_likelihood(w, batch) * (B / N)
    check_minibatches(regression(unscaled, batch_size=B, constraint_batch_size=N))


@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="negative control: a constraint on 16 rows is another one"
)
def test_the_constraint_on_the_batch_is_seen():
    check_minibatches(regression(batch_size=B, constraint_batch_size=B))


# Estimates


def curved(x):
    """Two rows whose Jacobian and second derivatives change from place to place."""
    return jnp.stack([jnp.sum(x**3) / 3 + x[0] * x[1] * x[2] - 1, jnp.sin(x[0] * x[3]) + jnp.sum(x[2:] ** 2) - 2])


def assert_unbiased(estimate, truth, num_keys=40_000):
    values = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(1), num_keys)), float)
    for column, true in zip(values.T, np.asarray(truth, float), strict=True):
        error, limit = discrepancy(column, true)
        assert limit < 0.1 * np.abs(truth).max(), f"limit {limit:.3g} cannot see an effect"
        assert error < limit, f"error {error:.3g}, limit {limit:.3g}"


PLACE = jnp.array([0.9, -0.6, 0.8, 0.5, -0.7])
FRAME = geometry.frame_at(curved, PLACE)
GRADIENT = geometry.half_log_det_gradient(curved, PLACE, FRAME)
CURVATURE = geometry.curvature(curved, PLACE, FRAME, method="exact")
halves = lambda key: _both_halves(curved, PLACE, FRAME, key)


def test_both_halves_of_the_correction_from_one_product_are_right_on_average():
    assert_unbiased(lambda key: halves(key)[0], GRADIENT)
    assert_unbiased(lambda key: halves(key)[1], CURVATURE)


def test_the_estimated_correction_is_right_on_average():
    exact = geometry.correction(curved, PLACE, FRAME, method="exact")
    assert_unbiased(lambda key: geometry.correction(curved, PLACE, FRAME, method="hutchinson", key=key), exact)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda key: halves(key)[0] - 0.2 * GRADIENT,
        lambda key: 1.2 * halves(key)[1],
        lambda key: geometry.curvature(
            curved, PLACE, FRAME._replace(root=0 * FRAME.root), method="hutchinson", key=key
        ),
    ],
    ids=["gradient", "trace", "unprojected"],
)
@pytest.mark.xfail(raises=AssertionError, strict=True, reason="negative control: a fifth too little or much, or tr(H)")
def test_wrong_halves_are_seen(wrong):
    assert_unbiased(wrong, GRADIENT if wrong(jax.random.key(0)).size == 5 else CURVATURE)
