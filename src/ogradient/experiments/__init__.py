"""The paper's experiments, one file each. `EXPERIMENTS` is what the command line lists; modules load when they run."""

EXPERIMENTS = {
    "synthetic": "the paper's cubic: energy distance and |g| against iterations, from on and off the set",
    "hyperparameters": "O-Langevin on the cubic from off the set, for several alpha and beta",
    "runtime": "energy distance on the cubic against seconds, with mici's samplers beside ours",
    "theory": "decay of |g| against the predicted rates, and of the Stein discrepancy, for O-SVGD and O-Langevin",
    "income": "a Bayesian network on Adult whose predictions must not covary with sex, along training",
    "moment": "constraining every draw against constraining their mean, on Adult",
    "loan": "logistic regression on Lending Club under two logic rules, along training",
    "tradeoff": "accuracy against fairness on Adult, for several levels of the constraint",
    "reference": "O-Langevin against exact draws of constrained logistic regressions on both tables",
    "problem": "any problem with a known answer, with any sampler, scored against its truth",
    "measure": "what the measure means: one torus as the zero set of two functions, in both measures",
}
