#!/usr/bin/env python3
"""Makes extreme_vectors.json: the edges that skew_vectors.json leaves out, straight from the formulas at 60 digits.

Needs mpmath. Run in this directory; the output does not depend on anything else."""

import json
import random

from mpmath import erfc, expm1, gammainc, inf, log, loggamma, mp, mpf, pi, sqrt

mp.dps = 60
UP = [mpf(x) for x in ("1.2", "1.6", "3", "12", "150")]
DOWN = [mpf(x) for x in ("0.8", "0.5", "0.1")]
THETA = [log(x) for x in UP + DOWN]
DENSE_THETA = [mpf("0.12"), mpf("0.5"), mpf(2), mpf(6)]
Z0 = [0, 2]
rng = random.Random(7)
cases = []


def case(kind, given, out):
    number = sum(c["kind"] == kind for c in cases) + 1
    cases.append({"id": f"extreme-{kind}-{number}", "kind": kind, "in": given, "out": out})


def num(x):
    if x in (inf, -inf):
        return None
    return float(x)


def bisect(f, low, high, rising, steps=200):
    low, high = mpf(low), mpf(high)
    for _ in range(steps):
        middle = (low + high) / 2
        if (f(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def tolerated(p, delta):
    p, delta = mpf(p), mpf(delta)
    return p * (1 + delta) / (1 + p * delta), p / (1 + (1 - p) * delta)


def psi(p, delta, floor):
    up = tolerated(max(mpf(p), mpf(floor)), delta)[0]
    down = tolerated(p, delta)[1]
    return [log(1 + (up if k < 5 else down) * expm1(THETA[k])) for k in range(8)]


for p in (0.0, 1.0, 1e-12, 1 - 2**-40):
    for delta in (0.0, 0.05, 0.25):
        up, down = tolerated(p, delta)
        case("tolerance", {"p": p, "delta": delta}, {"up": num(up), "dn": num(down)})

for p, x, n in ((0.0, 0, 10**9), (0.0, 10**9, 10**9), (1.0, 10**9, 10**9), (1.0, 0, 1), (1e-9, 3, 10**9),
                (0.25, 250_010_000, 10**9), (0.5, 1, 1), (1 - 2**-40, 999_999_999, 10**9)):
    row = psi(p, 0.05, 1e-4)
    case("sparse_increment", {"p": p, "delta": 0.05, "p_floor": 1e-4, "x": x, "n": n},
         {"psi": [num(v) for v in row], "inc": [num(x * t - n * v) for t, v in zip(THETA, row)]})


def ln_chi2(x, df):
    return log(gammainc(mpf(df) / 2, mpf(x) / 2, inf, regularized=True)) if x else mpf(0)


def chi2_of(counts, p):
    n = sum(counts)
    return sum((x - n * mpf(q)) ** 2 / (n * mpf(q)) for x, q in zip(counts, p))


def spread(n, p, noise):
    """Counts that add up to n, `noise` standard deviations off."""
    counts = [int(n * q) for q in p]
    for i in range(0, len(p) - 1, 2):
        move = int(noise * (n * p[i]) ** 0.5)
        counts[i] += move
        counts[i + 1] -= move
    counts[-1] += n - sum(counts)
    return counts


SLOTS = [13, 8, 11, 9, 14, 10, 12, 23, 7, 21]
P10 = [s / sum(SLOTS) for s in SLOTS]
for counts, p in ((spread(10**9, P10, 1.5), P10), (spread(10**9, P10, 60), P10), ([10**9, 0], [0.5, 0.5]),
                  ([5, 5], [0.5, 0.5]), ([1, 0, 0], [0.25, 0.25, 0.5]), (spread(10**9, [1 / 3, 1 / 3, 1 / 3], 0.5), [1 / 3] * 3)):
    n = sum(counts)
    chi2 = chi2_of(counts, p)
    g = 2 * sum(x * log(x / (n * mpf(q))) for x, q in zip(counts, p) if x)
    df = len(p) - 1
    case("classical", {"counts": counts, "p": p},
         {"chi2": num(chi2), "g": num(g), "df": df, "ln_p_chi2": num(ln_chi2(chi2, df)), "ln_p_g": num(ln_chi2(g, df))})

for counts, p, k in ((spread(10**9, P10, 1.5), P10, 100.0), (spread(10**9, P10, 0), P10, 1000.0),
                     (spread(10**9, P10, 20), P10, 10.0), ([1, 0], [0.5, 0.5], 2.0), ([10**9, 0], [1 - 2**-30, 2**-30], 100.0),
                     ([0, 0, 0], [1 / 3] * 3, 3.0), ([10**9], [1.0], 5.0)):
    n, k = sum(counts), mpf(k)
    ln_bf = loggamma(k) - loggamma(k + n) + sum(
        loggamma(k * mpf(q) + x) - loggamma(k * mpf(q)) - x * log(mpf(q)) for x, q in zip(counts, p))
    case("dm_bayes_factor", {"counts": counts, "p": p, "k": float(k)},
         {"ln_bf": num(ln_bf), "anytime_p": num(min(mpf(1), mp.e ** -ln_bf))})


def upper_normal(z):
    return erfc(z / sqrt(2)) / 2


def ncx2_tails(x, df, lam):
    """P(X <= x), P(X > x) of the noncentral chi-square."""
    if df == 1:
        a, b = sqrt(x), sqrt(lam)
        return upper_normal(b - a) - upper_normal(b + a), upper_normal(a - b) + upper_normal(a + b)
    lower = upper = mpf(0)
    half, weight, j = lam / 2, mp.e ** (-lam / 2), 0
    while j <= half or weight > mpf(10) ** -50:
        q = gammainc(mpf(df) / 2 + j, x / 2, inf, regularized=True)
        lower, upper = lower + weight * (1 - q), upper + weight * q
        j += 1
        weight *= half / j
    return lower, upper


def lambdas(x, df, alpha):
    if df == 0:
        return mpf(0), mpf(0)
    alpha = mpf(alpha)
    low, high = ncx2_tails(x, df, mpf(0)) if df == 1 else (1 - mp.e ** ln_chi2(x, df), mp.e ** ln_chi2(x, df))
    reach = 2 * sqrt(x) * 12 + 100
    bottom, top = max(mpf(0), x - reach), x + reach
    lo = mpf(0) if high >= alpha / 2 else bisect(lambda v: ncx2_tails(x, df, v)[1] - alpha / 2, bottom, top, True, 110)
    hi = mpf(0) if low <= alpha / 2 else bisect(lambda v: ncx2_tails(x, df, v)[0] - alpha / 2, bottom, top, False, 110)
    return lo, hi


for counts, p, alpha in (([10**9], [1.0], 0.01), ([500_050_000, 499_950_000], [0.5, 0.5], 0.01), ([900_000_000, 10**8], [0.5, 0.5], 1e-6),
                         ([500_000_000, 500_000_000], [0.5, 0.5], 0.01), ([30, 10, 0], [0.5, 0.25, 0.25], 0.01),
                         ([3, 9, 5, 2, 1], [0.2, 0.2, 0.2, 0.2, 0.2], 1e-6), ([1, 0], [0.5, 0.5], 0.05), ([100, 0], [1.0 - 2**-20, 2**-20], 0.01)):
    n, df = sum(counts), len(p) - 1
    chi2 = chi2_of(counts, p)
    lo, hi = lambdas(chi2, df, alpha)
    tv = sum(abs(mpf(x) / n - mpf(q)) for x, q in zip(counts, p)) / 2
    reach = sqrt(log(1 / mpf(alpha)) / (2 * n))
    ratios = [mpf(x) / (n * mpf(q)) for x, q in zip(counts, p)]
    case("effect", {"counts": counts, "p": p, "alpha": alpha},
         {"chi2": num(chi2), "cv_raw": num(sqrt(chi2 / n)), "cv_debiased": num(sqrt(max(mpf(0), chi2 - df) / n)), "tv": num(tv),
          "tv_lcb": num(max(mpf(0), tv - sqrt(mpf(df) / n) / 2 - reach)), "tv_ucb": num(min(mpf(1), tv + reach)),
          "max_ratio": num(max(ratios)), "min_ratio": num(min(ratios)), "lambda_lo": num(lo), "lambda_hi": num(hi),
          "cv_lo": num(sqrt(lo / n)), "cv_hi": num(sqrt(hi / n))})


def lower_binomial(x, n, theta):
    """P(Binomial(n, theta) <= x) by its terms, largest first."""
    theta = mpf(theta)
    term = mp.e ** (loggamma(n + 1) - loggamma(x + 1) - loggamma(n - x + 1) + x * log(theta) + (n - x) * log(1 - theta))
    total, k = mpf(0), x
    while k >= 0 and term > total * mpf(10) ** -30:
        total += term
        term *= mpf(k) / (n - k + 1) * (1 - theta) / theta
        k -= 1
    return total


def clopper_pearson(x, n, alpha):
    half = mpf(alpha) / 2
    seen = mpf(x) / n
    width = sqrt(seen * (1 - seen) / n) * 12 + mpf(60) / n
    low, high = max(mpf(0), seen - width), min(mpf(1), seen + width)
    # P(X >= x | theta) is P(X <= n - x) of the others.
    lower = mpf(0) if x == 0 else bisect(lambda t: lower_binomial(n - x, n, 1 - t) - half if t > 0 else -1, low, seen, True, 70)
    upper = mpf(1) if x == n else bisect(lambda t: lower_binomial(x, n, t) - half if t < 1 else -1, seen, high, False, 70)
    return lower, upper


def ln_e(x, n, theta, a, b):
    def ln_beta(u, v):
        return loggamma(u) + loggamma(v) - loggamma(u + v)

    theta = mpf(theta)
    hits = x * log(theta) if x else mpf(0)
    others = (n - x) * log(1 - theta) if n - x else mpf(0)
    return ln_beta(a + x, b + n - x) - ln_beta(a, b) - hits - others


def anytime(x, n, alpha, a, b):
    wanted = log(1 / mpf(alpha))
    seen = mpf(x) / n if n else mpf("0.5")
    tiny = mpf(10) ** -40
    f = lambda t: ln_e(x, n, t, a, b) - wanted
    lower = mpf(0) if f(tiny) < 0 else bisect(f, tiny, seen, False)
    upper = mpf(1) if f(1 - tiny) < 0 else bisect(f, seen, 1 - tiny, True)
    return lower, upper


for x, n, alpha, a, b, theta in ((0, 1, 0.01, 0.5, 0.5, 0.3), (1, 1, 0.01, 0.5, 0.5, 0.3), (0, 10**9, 0.01, 0.5, 0.5, 1e-9),
                                 (1, 10**9, 0.001, 0.5, 0.5, 2e-9), (100, 10**9, 1e-6, 0.5, 0.5, 1.1e-7),
                                 (10**9, 10**9, 0.01, 0.5, 0.5, 0.999999999), (10**9 - 7, 10**9, 0.01, 0.5, 0.5, 0.99999999),
                                 (250_010_000, 10**9, 0.01, 0.5, 0.5, 0.25), (500_000_000, 10**9, 1e-9, 1.0, 2.0, 0.5),
                                 (5, 100, 1e-12, 2.0, 30.0, 0.05)):
    a, b = mpf(a), mpf(b)
    case("share_interval", {"x": x, "n": n, "alpha": alpha, "a": float(a), "b": float(b), "theta": theta},
         {"clopper_pearson": [num(v) for v in clopper_pearson(x, n, alpha)], "ln_e_at_theta": num(ln_e(x, n, theta, a, b)),
          "anytime_cs": [num(v) for v in anytime(x, n, alpha, a, b)]})
case("share_interval", {"x": 0, "n": 0, "alpha": 0.01, "a": 0.5, "b": 0.5, "theta": 0.4},
     {"clopper_pearson": [0.0, 1.0], "ln_e_at_theta": 0.0, "anytime_cs": [0.0, 1.0]})

for p, q, arl in (([0.5, 0.5], [1.0, 0.0], 1e6), (P10, [x * (1 + 1e-6 * (-1) ** i) for i, x in enumerate(P10)], 3.4e10), ([1e-9, 1 - 1e-9], [2e-9, 1 - 2e-9], 1e9)):
    kl = sum(mpf(y) * log(mpf(y) / mpf(x)) for x, y in zip(p, q) if y)
    case("lorden", {"p": p, "q": q, "A": arl}, {"kl": num(kl), "tv": num(sum(abs(mpf(x) - mpf(y)) for x, y in zip(p, q)) / 2), "bound_flows": num(log(mpf(arl)) / kl)})

for p, arl in (([0.5, 0.5], 1e3), ([1 / 3] * 3, 1e12), ([1e-6] * 10 + [1 - 1e-5], 1e6), ([0.05, 0.95], 1e6)):
    median = mpf(sorted(p)[len(p) // 2])
    q = min(2 * median, (1 + median) / 2)
    kl = q * log(q / median) + (1 - q) * log((1 - q) / (1 - median))
    k = 1 << (len(p) - 1).bit_length()
    case("n_required", {"p": p, "A": arl}, {"flows": num(mpf("2.5") * (log(mpf(arl)) + log(mpf(16 * k))) / kl)})

for p, m in (([1.0], 5.0), ([0.0, 1.0, 0.0], 3.0), (P10, 1.0), (P10, 1e12)):
    case("expected_tv_given_neff", {"p": p, "neff": m}, {"tv": num(sum(sqrt(2 * mpf(q) * (1 - mpf(q)) / (pi * mpf(m))) for q in p) / 2)})

for n, top in ((10**9, []), (10**9, [10**9]), (1, [1]), (10**12, [10**11] * 5), (64, [1] * 64)):
    case("n_eff", {"n_all": n, "top_key_flows": top}, {"neff": num(mpf(n) ** 2 / (sum(w * w for w in top) + n - sum(top)))})

for x, n in (([0, 0], [10, 10]), ([10, 10], [10, 10]), ([10**9, 0], [10**9, 10**9]), ([250_000_000, 250_050_000], [10**9, 10**9]), ([3], [9])):
    p = mpf(sum(x)) / sum(n)
    used = [(a, b) for a, b in zip(x, n) if b * p >= mpf("0.5")]
    chi2 = sum((a - b * p) ** 2 / (b * p * (1 - p)) for a, b in used) if 0 < p < 1 else mpf(0)
    df = max(len(used) - 1, 0)
    case("heterogeneity", {"x": x, "n": n}, {"chi2": num(chi2), "df": df, "ln_p": num(ln_chi2(chi2, df)) if df else 0.0})


class Detector:
    def __init__(self, n, bits=0):
        self.n, self.bits = n, bits
        self.s = [[mpf(0)] * 8 for _ in range(n + bits)]
        self.half_lives = [max(4 * n, 64), max(64 * n, 1024), max(1024 * n, 16384)]
        self.ln_r = [-inf] * 24
        self.forget()

    def forget(self):
        self.e = [[mpf(0)] * self.n for _ in range(3)]
        self.f = [mpf(0)] * 3

    def step(self, x, p, cfg):
        total = sum(x)
        if total == 0:
            return None
        with_bits = x + [sum(v for i, v in enumerate(x) if i >> j & 1) for j in range(self.bits)]
        shares = [mpf(q) for q in p]
        shares += [sum(q for i, q in enumerate(shares) if i >> j & 1) for j in range(self.bits)]
        for b, (count, share) in enumerate(zip(with_bits, shares)):
            row = psi(share, cfg["delta"], cfg["p_floor"])
            self.s[b] = [max(s, 0) + count * t - total * v for s, t, v in zip(self.s[b], THETA, row)]
        top = max(max(row) for row in self.s)
        at = next([b, k] for b, row in enumerate(self.s) for k, s in enumerate(row) if s == top)
        out = {"max_s": num(top), "argmax": at}
        if "tau" in cfg:
            out["ln_dense"] = num(self.dense(x, [mpf(q) for q in p], total, mpf(cfg["tau"])))
        return out

    def dense(self, x, p, total, tau):
        at = 0
        for span in range(3):
            f = self.f[span]
            above = [e - f * q for e, q in zip(self.e[span], p)]
            for z in Z0:
                group = [b for b, v in enumerate(above) if v > 0 and (z == 0 or v * v > z * z * (f * p[b] * (1 - p[b]) + mpf("1e-12")))]
                share, hits = sum(p[b] for b in group), sum(x[b] for b in group)
                bound = min(share + tau, 1)
                for theta in DENSE_THETA:
                    gain = hits * theta - total * log(1 + bound * expm1(theta)) if share > 0 and bound < 1 and f > 0 else mpf(0)
                    old = self.ln_r[at]
                    self.ln_r[at] = (log(1 + mp.e**old) if old != -inf else mpf(0)) + gain
                    at += 1
            decay = mpf(2) ** (-mpf(total) / self.half_lives[span])
            self.e[span] = [e * decay + v for e, v in zip(self.e[span], x)]
            self.f[span] = f * decay + total
        return log(sum(mp.e**r for r in self.ln_r) / 24)


def draw(n, weights):
    counts = [0] * len(weights)
    for i in rng.choices(range(len(weights)), weights, k=n):
        counts[i] += 1
    return counts


def trajectory(p, cfg, xs):
    detector = Detector(len(p))
    steps = [detector.step(x, p, cfg) for x in xs]
    k = 1 << (len(p) - 1).bit_length()
    h_sparse, h_dense = log(mpf(cfg["A"])) + log(mpf(2)) + log(mpf(8 * k)), log(mpf(cfg["A"])) + log(mpf(2))
    first = None
    for check, step in enumerate(steps, 1):
        if step and first is None and (step["max_s"] >= h_sparse or step["ln_dense"] >= h_dense):
            first = {"check": check, "sparse": bool(step["max_s"] >= h_sparse), "dense": bool(step["ln_dense"] >= h_dense)}
    case("skewdet", {"p": p, "cfg": cfg, "xs": xs},
         {"h_sparse": num(h_sparse), "h_dense": num(h_dense), "steps": steps, "first_alarm": first,
          "final_s": [[num(s) for s in row] for row in detector.s]})


CFG = {"delta": 0.05, "tau": 0.02, "p_floor": 1e-4, "A": 1e6}
P8 = [s / 101 for s in (9, 14, 11, 17, 10, 13, 8, 19)]
# One backend; a certain and an impossible one; nothing at all; a thousand million flows a check, even and not.
trajectory([1.0], CFG, [[5], [0], [10**9], [1]])
trajectory([1.0, 0.0], CFG, [[50, 0], [40, 0], [49, 1], [30, 2], [44, 0]])
trajectory(P8, CFG, [[0] * 8] * 3)
trajectory(P8, CFG, [spread(10**9, P8, noise) for noise in (0.5, -1, 1.5, -0.3)])
trajectory(P8, CFG, [spread(10**9, P8, noise) for noise in (1, 4000, 5000, -3000)])
trajectory(P8, {**CFG, "tau": 0.0, "delta": 0.0}, [draw(300, P8) for _ in range(12)])
trajectory(P8, {**CFG, "A": 1.0}, [draw(1, P8) for _ in range(25)])

p16 = [1 / 16] * 16
odd_only = [0 if i % 2 == 0 else 1 / 8 for i in range(16)]
detector = Detector(16, 4)
cfg = {"delta": 0.05, "p_floor": 1e-4, "A": 1e4}
xs = [draw(12, p16) for _ in range(4)] + [draw(12, odd_only) for _ in range(5)] + [[0] * 16, spread(10**9, p16, 2)]
steps = [detector.step(x, p16, cfg) for x in xs]
h = log(mpf(cfg["A"])) + log(mpf(2)) + log(mpf(8 * 20))
first = next((check for check, step in enumerate(steps, 1) if step and step["max_s"] >= h), None)
case("skewdet_hist", {"p": p16, "bits": 4, "cfg": cfg, "xs": xs}, {"h_sparse": num(h), "steps": steps, "first_sparse_alarm": first})

after = [s / 101 for s in (30, 0, 20, 1, 9, 13, 8, 20)]
xs = [draw(200, P8) for _ in range(5)] + [draw(200, P8[::-1]) for _ in range(2)] + [draw(200, after) for _ in range(6)]
detector, p, steps = Detector(8), P8, []
cfg = {"delta": 0.05, "tau": 0.02, "p_floor": 1e-4}
for check, x in enumerate(xs, 1):
    if check == 6:
        p = after
        detector.forget()
    steps.append(None if check in (6, 7) else detector.step(x, p, cfg))
case("piecewise_null", {"p_before": P8, "p_after": after, "swap_in_check": 6, "blank_checks": [6, 7], "cfg": cfg, "xs": xs}, {"steps": steps})

for p, rows in ((P8, 2), ([1e-6, 1 - 1e-6], 1)):
    lambdas_ = [0.1, 0.4, 0.9]
    epochs = []
    for _ in range(6):
        parts = [[rng.random() ** 3 for _ in p] for _ in range(rows)]
        epochs.append([[v / sum(part) for v in part] for part in parts])
    s, tops = [[mpf(0)] * 6 for _ in p], []
    h = log(mpf(1e3)) + log(mpf(6 * (1 << (len(p) - 1).bit_length())))
    for epoch in epochs:
        for b, q in enumerate(p):
            up, down = tolerated(q, 0.05)
            for j, size in enumerate(lambdas_):
                size = mpf(size)
                s[b][j] = max(s[b][j], 0) + sum(log(1 + size * (mpf(row[b]) - up) / up) for row in epoch)
                s[b][3 + j] = max(s[b][3 + j], 0) + sum(log(1 + size * (down - mpf(row[b])) / (1 - down)) for row in epoch)
        tops.append(max(max(row) for row in s))
    first = next((i for i, top in enumerate(tops, 1) if top >= h), None)
    case("rotation_bet", {"p": p, "delta": 0.05, "A": 1e3, "lambdas": lambdas_, "epochs": epochs},
         {"h": num(h), "max_s": [num(t) for t in tops], "first_alarm": first, "final_s": [[num(v) for v in row] for row in s]})

meta = {"generator": "extreme_vectors.py, mpmath (60 digits)", "seed": 7, "tolerance": "abs or rel 1e-9 for f64 code; 1e-4 abs for S kept in f32",
        "theta_up": [num(t) for t in THETA[:5]], "theta_dn": [num(t) for t in THETA[5:]], "dense_theta": [num(t) for t in DENSE_THETA],
        "dense_z0": Z0, "notes": "edges: no flows, 1e9 flows, shares 0 and 1, one backend"}
with open("extreme_vectors.json", "w") as file:
    json.dump({"meta": meta, "cases": cases}, file, separators=(",", ":"))
    file.write("\n")
