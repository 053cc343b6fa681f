"""The experiments, one file each. `EXPERIMENTS` is what the command line and the docs list; modules load when they run.

To add one, write its file, and its row: the name of the file and a sentence on it. The file has

- `Config`, a frozen dataclass. A field made by `options.option` becomes an option of the command;
- `run(config, out, *, progress)`, which writes a folder and returns the rows of its table and the path of its figure. An
  experiment that reads raw files takes `data` too, their folder, and has `DATA_HELP`, the help of that option.

It may have

- `QUICK`, a smaller `Config`, for `--quick`;
- `FLOAT64 = True`, to be run in double precision;
- `Config.title`, for its table where the experiment's name does not say enough;
- `check(config)`, which raises ValueError for settings that do not fit together, before anything is computed.
"""

from typing import NamedTuple


class Experiment(NamedTuple):
    """A row of the table: where the experiment is, and one sentence on it."""

    module: str
    help: str


_HELP = {
    "synthetic": "The paper's cubic: energy distance and |g| against iterations, from on and off the set.",
    "hyperparameters": "O-Langevin on the cubic from off the set, for several alpha and beta.",
    "runtime": "Energy distance on the cubic against seconds, with mici's samplers beside ours.",
    "theory": "Decay of |g| against the predicted rates, and of the Stein discrepancy, for O-SVGD and O-Langevin.",
    "problem": "Any problem with a known answer, with any sampler, scored against its truth.",
    "measure": "One torus as the zero set of two functions, in both measures.",
    "income": "A Bayesian network on Adult whose predictions must not covary with sex, along training.",
    "moment": "Constraining every draw against constraining their mean, on Adult.",
    "loan": "Logistic regression on Lending Club under two logic rules, along training.",
    "tradeoff": "Accuracy against fairness on Adult, for several levels of the constraint.",
    "images": "Bayesian networks on images at a level of the loss: errors, calibration, images from elsewhere.",
    "reference": "O-Langevin against exact draws: posterior means of constrained logistic regressions on both tables.",
}
EXPERIMENTS = {name: Experiment(f"ogradient.experiments.{name}", text) for name, text in _HELP.items()}
