"""One example of every optimiser and every algorithm of the catalogues, for the contract tests that run over them."""

import fedgbo
from fedgbo.algorithms import PAPER

SGD, ADAM = fedgbo.SGD(lr=0.2), fedgbo.Adam(lr=0.1, beta1=0.9)
PART = [(2, 5)]  # a personal part that every model of the tests has
MOMENTS = {"lr": 0.1, "beta1": 0.9, "beta2": 0.75, "eps": 0.5}
OPTIMISERS = {
    "sgd": fedgbo.SGD(lr=0.1),
    "sgdm": fedgbo.SGDm(lr=0.1, beta=0.9),
    "nesterov": fedgbo.Nesterov(lr=0.1, beta=0.9),
    "rmsprop": fedgbo.RMSProp(lr=0.1, beta=0.9, eps=0.5),
    "adagrad": fedgbo.AdaGrad(lr=0.1, eps=0.5),
    "adam": fedgbo.Adam(**MOMENTS),
    "correctedadam": fedgbo.CorrectedAdam(**MOMENTS),
    "adamw": fedgbo.AdamW(**MOMENTS, weight_decay=0.2),
    "amsgrad": fedgbo.AMSGrad(**MOMENTS),
    "yogi": fedgbo.Yogi(**MOMENTS),
    "lion": fedgbo.Lion(lr=0.1),
    "signum": fedgbo.Signum(lr=0.1),
}
AFFINE = [name for name, optimiser in OPTIMISERS.items() if isinstance(optimiser, fedgbo.AffineOptimiser)]
ALGORITHMS = {
    "adaptivefedopt": fedgbo.AdaptiveFedOpt(SGD, ADAM),
    "apfl": fedgbo.APFL(SGD, alpha=0.4),
    "averaged": fedgbo.Averaged(fedgbo.FedGBO(ADAM), decay=0.5),
    "ditto": fedgbo.Ditto(SGD, lam=0.5),
    "fedadagrad": fedgbo.FedAdagrad(SGD, fedgbo.AdaGrad(lr=0.5)),
    "fedadam": fedgbo.FedAdam(SGD, ADAM),
    "fedavg": fedgbo.FedAvg(SGD),
    "fedavgm": fedgbo.FedAvgM(SGD, fedgbo.SGDm(lr=0.5, beta=0.5)),
    "fedbn": fedgbo.FedBN(SGD, PART),
    "fedbuff": fedgbo.FedBuff(fedgbo.FedGBO(ADAM), max_staleness=2),
    "fedcm": fedgbo.FedCM(SGD, alpha=0.2),
    "feddyn": fedgbo.FedDyn(SGD, alpha=0.1),
    "fedgbo": fedgbo.FedGBO(ADAM),
    "fedlin": fedgbo.FedLin(SGD),
    "fedmax": fedgbo.FedMAX(SGD, beta=1.0),
    "fednova": fedgbo.FedNova(SGD),
    "fedper": fedgbo.FedPer(SGD, PART),
    "fedprox": fedgbo.FedProx(SGD, mu=0.1),
    "fedrep": fedgbo.FedRep(SGD, PART, head_steps=2),
    "fedsam": fedgbo.FedSAM(SGD, rho=0.1),
    "fedyogi": fedgbo.FedYogi(SGD, fedgbo.Yogi(lr=0.1, beta1=0.9)),
    "ghbm": fedgbo.GHBM(SGD, beta=0.5, tau=2),
    "mfl": fedgbo.MFL(ADAM),
    "mime": fedgbo.Mime(ADAM),
    "mimelite": fedgbo.Mimelite(ADAM),
    "mimexlite": fedgbo.MimeXlite(ADAM),
    "mofedsam": fedgbo.MoFedSAM(SGD, alpha=0.2, rho=0.1),
    "qfedavg": fedgbo.QFedAvg(SGD, q=1.0),
    "scaffold": fedgbo.SCAFFOLD(SGD),
}
CLOSED = [ALGORITHMS[name] for name in (*PAPER, "scaffold")]  # those with cost formulas
