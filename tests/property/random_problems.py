"""Random problems with truths by quadrature: quadrics and their intersections, in any units, anywhere, pinned, repeated, cut.

Geometry is drawn in coordinates u of ordinary size. What a sampler sees is x = unit · (u + offset), with units between 1e-6 and
1e6 (different in each coordinate, or the same) and every row of g in units of its own. A problem is a dict of arrays, so that
hundreds of one family share a compiled program.
"""

import jax.numpy as jnp
import numpy as np

import ogradient as og

GRID = 4096
FAMILIES = ("curve", "cut", "surface", "pinned", "twice", "arc", "half")


def dim(family):
    return {"curve": 2, "arc": 2, "half": 2, "pinned": 4}.get(family, 3)


def rows_in_u(family, u, p):
    """The rows of g in coordinates of ordinary size, before they get units of their own."""
    quadric = lambda v: jnp.sum((p["shape"] @ (v - p["centre"])) ** 2) - 1
    bowl = lambda v: v[2] - p["bowl"] @ jnp.stack([v[0] ** 2, v[1] ** 2, v[0], v[1], jnp.ones_like(v[0])])
    if family in ("curve", "arc", "surface"):
        return jnp.stack([quadric(u)])
    if family == "pinned":
        return jnp.stack([u[0] - p["pins"][0], quadric(jnp.stack([u[1], u[3]])), u[2] - p["pins"][1]])
    if family == "cut":
        return jnp.stack([quadric(u), bowl(u)])
    return jnp.stack([quadric(u), bowl(u), 3 * quadric(u)])  # "twice"


def to_u(x, p):
    return x / p["unit"] - p["offset"]


def build(family, p, measure):
    """The problem a sampler sees."""
    logdensity = lambda x: p["tilt"] @ to_u(x, p) - 0.5 * p["well"] * jnp.sum((to_u(x, p) - p["mean"]) ** 2)
    equality = None if family == "half" else lambda x: p["row_unit"] * rows_in_u(family, to_u(x, p), p)
    wall = lambda x: p["row_unit"][0] * (p["wall"][:-1] @ to_u(x, p) - p["wall"][-1])
    return og.Problem(logdensity, equality, wall if family in ("arc", "half") else None, measure)


def draw(family, rng, dtype, *, isotropic):
    """A random problem, its moments in u for both measures, and a function that makes exact draws."""
    d = dim(family)
    flat = 2 if family in ("curve", "arc", "pinned") else 3
    rotation = np.linalg.qr(rng.normal(size=(flat, flat)))[0]
    axes = rng.uniform(0.6, 1.7, flat)
    p = {
        "shape": np.diag(1 / axes) @ rotation.T,
        "centre": rng.uniform(-0.5, 0.5, flat) * (rng.random() < 0.7),
        "pins": np.array([0.0, rng.choice([0.0, 1.0, -0.3])]),
        "bowl": np.zeros(5),
        "wall": np.zeros(d + 1),
        "tilt": rng.uniform(-1, 1, d),
        "well": np.array(rng.choice([0.0, 1.0])),
        "mean": rng.uniform(-0.5, 0.5, d),
        "unit": 10.0 ** rng.uniform(-6, 6) * (np.ones(d) if isotropic else 10.0 ** rng.uniform(-2, 2, d)),
        # Far from 0 a number has fewer digits left for the set: a hundred times its size leaves float32 five of seven.
        "offset": rng.normal(size=d)
        * 10.0 ** rng.uniform(-1, 1.5 if dtype == np.float32 else 6)
        * (rng.random() < 0.5),
        "row_unit": 10.0
        ** rng.uniform(-6, 6, {"half": 1, "curve": 1, "arc": 1, "surface": 1, "cut": 2}.get(family, 3)),
    }
    if family == "pinned":
        p["offset"][[0, 2]] *= rng.random() < 0.5  # half of them are pinned at 0 in x as well
    if family in ("cut", "twice"):
        level = p["centre"][2] - 0.3 * rng.random()
        p["bowl"] = np.array([*(rng.uniform(0.0, 0.6, 2) * (rng.random() < 0.7)), *rng.uniform(-0.3, 0.3, 2), level])
    if family in ("arc", "half"):
        normal = rng.normal(size=d)
        normal /= np.linalg.norm(normal)
        p["wall"] = np.array(
            [*normal, normal @ (p["centre"] if family == "arc" else p["mean"]) + rng.uniform(-0.3, 0.6)]
        )
    if family == "half":
        p["well"] = np.array(1.0)
    return p, _quadrature(family, p, rng)


def moments(u):
    """Of points (n, d) in u: bounded functions of the coordinates that vary."""
    v = np.stack([u[:, 1], u[:, 3]], axis=1) if u.shape[1] == 4 else u
    columns = [*v.T, *(v**2).T, v[:, 0] * v[:, 1]]
    return np.stack(columns, axis=1)


def _quadrature(family, p, rng):
    """For each measure: weights on a fine set of points, hence moments, and exact draws."""
    if family == "half":
        points, area, inverse = _half_points(p)
    elif family == "surface":
        points, area, inverse = _surface_points(p)
    else:
        points, area, inverse = _curve_points(family, p)
    result = {}
    for measure in ("conditional", "hausdorff"):
        weight = area * np.exp(_logdensity(points, p) - _logdensity(points, p).max())
        if measure == "conditional" and family != "half":
            weight = weight / _volume(family, points, p)
        if family == "arc":
            weight = weight * (points @ p["wall"][:-1] <= p["wall"][-1])
        weight = weight / weight.sum()
        mean = weight @ moments(points)
        sd = np.sqrt(np.maximum(weight @ (moments(points) - mean) ** 2, 0))
        result[measure] = (mean, sd, lambda n, w=weight: inverse(rng, w, n))
    return result


def _logdensity(u, p):
    return u @ p["tilt"] - 0.5 * p["well"] * np.sum((u - p["mean"]) ** 2, axis=1)


def _jacobian(family, u, p):
    """Independent rows of ∂g/∂x (n, m, d), by hand."""
    n = len(u)
    v = np.stack([u[:, 1], u[:, 3]], axis=1) if family == "pinned" else u
    quadric = 2 * (v - p["centre"]) @ (p["shape"].T @ p["shape"])
    if family in ("curve", "arc", "surface"):
        rows = quadric[:, None]
    elif family == "pinned":
        rows = np.zeros((n, 3, 4))
        rows[:, 0, 0] = rows[:, 2, 2] = 1
        rows[:, 1, [1, 3]] = quadric
    else:
        a = p["bowl"]
        bowl = np.stack([-2 * a[0] * u[:, 0] - a[2], -2 * a[1] * u[:, 1] - a[3], np.ones(n)], axis=1)
        rows = np.stack([quadric, bowl], axis=1)
    return rows * p["row_unit"][None, : rows.shape[1], None] / p["unit"]


def _volume(family, u, p):
    """√det G in x, up to a constant: rows are scaled to ordinary size first."""
    rows = _jacobian(family, u, p)
    rows = rows / np.abs(rows).max(axis=(0, 2), keepdims=True)
    return np.sqrt(np.linalg.det(rows @ rows.transpose(0, 2, 1)))


def _on_curve(family, angle, p):
    """Points of the curve at given angles."""
    if family in ("curve", "arc", "pinned"):
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        v = p["centre"] + circle @ np.linalg.inv(p["shape"]).T
        if family != "pinned":
            return v
        pins = np.broadcast_to(p["pins"], v.shape)
        return np.stack([pins[:, 0], v[:, 0], pins[:, 1], v[:, 1]], axis=1)
    a = p["bowl"]

    def point(radius):
        x, y = p["centre"][0] + radius * np.cos(angle), p["centre"][1] + radius * np.sin(angle)
        return np.stack([x, y, a[0] * x**2 + a[1] * y**2 + a[2] * x + a[3] * y + a[4]], axis=1)

    inside = lambda radius: np.sum(((point(radius) - p["centre"]) @ p["shape"].T) ** 2, axis=1) - 1
    low, high = np.zeros_like(angle), np.full_like(angle, 6.0)
    for _ in range(70):
        middle = (low + high) / 2
        low, high = np.where(inside(middle) < 0, middle, low), np.where(inside(middle) < 0, high, middle)
    return point((low + high) / 2)


def _curve_points(family, p):
    angle = 2 * np.pi * np.arange(GRID) / GRID
    points = _on_curve(family, angle, p)
    frequencies = np.fft.fftfreq(GRID, 1 / GRID)[:, None]
    velocity = np.real(np.fft.ifft(1j * frequencies * np.fft.fft(points, axis=0), axis=0)) * p["unit"]
    area = np.linalg.norm(velocity / np.abs(velocity).max(), axis=1)

    def inverse(rng, weight, n):
        index = rng.choice(GRID, n, p=weight)
        return _on_curve(family, angle[index] + (rng.random(n) - 0.5) * 2 * np.pi / GRID, p)

    return points, area, inverse


def _surface_points(p):
    """An ellipsoid in u; its area element in x by the cofactors of the map from the unit sphere."""
    nodes, weights = np.polynomial.legendre.leggauss(160)
    angle = 2 * np.pi * np.arange(320) / 320
    z, phi = (grid.ravel() for grid in np.meshgrid(nodes, angle, indexing="ij"))
    sphere = lambda z, phi: np.stack([np.sqrt(1 - z**2) * np.cos(phi), np.sqrt(1 - z**2) * np.sin(phi), z], axis=1)
    across = np.linalg.inv(p["shape"]).T
    points = p["centre"] + sphere(z, phi) @ across
    normal = sphere(z, phi) @ p["shape"] / (p["unit"] / p["unit"].min())  # B⁻ᵀn, B the map from the sphere to x
    area = np.repeat(weights, 320) * np.linalg.norm(normal, axis=1)

    def inverse(rng, weight, n):
        index = rng.choice(len(points), n, p=weight)
        edges = np.concatenate([[-1], -1 + np.cumsum(weights)])
        row = index // 320
        z = edges[row] + rng.random(n) * weights[row]
        return p["centre"] + sphere(np.clip(z, -1, 1), phi[index] + (rng.random(n) - 0.5) * 2 * np.pi / 320) @ across

    return points, area, inverse


def _half_points(p):
    """A Gaussian below a plane: along its normal a cut normal, across it a normal."""
    normal, level = p["wall"][:-1], p["wall"][-1]
    across = np.array([-normal[1], normal[0]])
    centre = p["mean"] + p["tilt"]
    depth = (np.arange(1500) + 0.5) / 1500 * 9
    side = np.linspace(-7, 7, 601)
    t, s = (grid.ravel() for grid in np.meshgrid(depth, side, indexing="ij"))
    place = lambda t, s: (level - t)[:, None] * normal + (centre @ across + s)[:, None] * across
    points = place(t, s)

    def inverse(rng, weight, n):
        index = rng.choice(len(points), n, p=weight)
        return place(t[index] + (rng.random(n) - 0.5) * 9 / 1500, s[index] + (rng.random(n) - 0.5) * 14 / 600)

    return points, np.ones(len(points)), inverse
