"""A scikit-learn estimator: features of a table, learnt by aligning two views of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from gcalign.errors import count, positive
from gcalign.methods import method
from gcalign.targets import Labels


class GCAEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Features of tabular data, learnt by a method of gcalign, as a scikit-learn transformer.

    A network with one hidden layer is trained so that two views of a row get similar features. The views are pairs of
    rows (X, X2) or, without X2, copies of X in which some entries come from other rows. With y, rows of one class
    belong together.

    Args:
        method: the name of a method, e.g. "gca-uot".
        eps: temperature ε.
        dim: the number of features.
        hidden: width of the hidden layer.
        epochs: passes over the rows.
        batch_size: rows for each step.
        lr: learning rate of Adam.
        corruption: without X2, the share of entries that are replaced in each view.
        options: other options of the method, e.g. {"relax": (2.0, 2.0)}.
        random_state: seed, or numpy's random state.

    Attributes:
        network_: the trained network, on standardised columns. Features are its outputs, as unit vectors.
        mean_, scale_: mean and standard deviation of the columns of X.
        second_: network, mean and scale for X2, if it has other columns than X, else None.
        losses_: mean loss of each epoch.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from gcalign import GCAEncoder
        >>> X, y = load_digits(return_X_y=True)
        >>> model = make_pipeline(GCAEncoder(epochs=2, random_state=0), LogisticRegression(max_iter=500))
        >>> bool(model.fit(X[:500], y[:500]).score(X[500:], y[500:]) > 0.7)
        True
    """

    def __init__(
        self,
        method: str = "gca-uot",
        *,
        eps: float = 0.2,
        dim: int = 32,
        hidden: int = 128,
        epochs: int = 20,
        batch_size: int = 128,
        lr: float = 1e-3,
        corruption: float = 0.3,
        options: dict[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.method, self.eps, self.dim, self.hidden = method, eps, dim, hidden
        self.epochs, self.batch_size, self.lr, self.corruption = epochs, batch_size, lr, corruption
        self.options, self.random_state = options, random_state

    def fit(self, X: Any, y: Any = None, *, X2: Any = None) -> GCAEncoder:
        """Learn the features.

        Args:
            X: rows [n, d].
            y: classes [n]; None: each row belongs to its partner alone.
            X2: partners of the rows [n, d2]; None makes views of X.

        Returns:
            The estimator itself.
        """
        for name in ("dim", "hidden", "epochs"):
            count(name, getattr(self, name), "a whole number of at least 1")
        count("batch_size", self.batch_size, "rows for each step; two make a pair and a negative", least=2)
        if not 0 < positive("corruption", self.corruption, "the share of replaced entries, e.g. 0.3") < 1:
            raise ValueError(f"corruption={self.corruption} must be between 0 and 1; 0.3 replaces 30 % of the entries")
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        if X2 is not None:
            X2 = check_array(X2, dtype=np.float64, input_name="X2")
            if len(X2) != len(X):
                raise ValueError(f"X2 has {len(X2)} rows and X {len(X)}; row i of both must belong to the same pair")
        codes = None if y is None else self._codes(y, len(X))
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        self.mean_, self.scale_ = _standard(X)
        self.network_ = _network(X.shape[1], self.hidden, self.dim, generator)
        self.second_: tuple[nn.Module, Any, Any] | None = None
        if X2 is not None and X2.shape[1] != X.shape[1]:
            self.second_ = (_network(X2.shape[1], self.hidden, self.dim, generator), *_standard(X2))
        self.losses_ = self._trained(X, X2, codes, generator)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, X2: Any = None) -> Any:
        """`fit`, then the features of X."""
        return self.fit(X, y, X2=X2).transform(X)

    def transform(self, X: Any) -> Any:  # [n, d] -> [n, dim] float64
        """The features of rows."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return _encoded(self.network_, X, self.mean_, self.scale_)

    def transform_second(self, X2: Any) -> Any:  # [n, d2] -> [n, dim] float64
        """The features of rows like X2, which has other columns than X."""
        check_is_fitted(self)
        if self.second_ is None:
            raise ValueError("X2 had the columns of X, or there was none; use transform")
        network, mean, scale = self.second_
        X2 = check_array(X2, dtype=np.float64, input_name="X2")
        if X2.shape[1] != len(mean):
            raise ValueError(f"X2 has {X2.shape[1]} columns, but {len(mean)} in fit; pass the same columns")
        return _encoded(network, X2, mean, scale)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the features."""
        check_is_fitted(self)
        return np.asarray([f"gcaencoder{k}" for k in range(self.dim)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # features are float64
        return tags

    @staticmethod
    def _codes(y: Any, n: int) -> Tensor:
        y = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        if y.ndim != 1 or len(y) != n:
            raise ValueError(
                f"y of shape {y.shape} must have one class for each of the {n} rows of X; a second view is X2="
            )
        return torch.from_numpy(np.unique(y, return_inverse=True)[1].astype(np.int64))

    def _trained(self, X: Any, X2: Any, codes: Tensor | None, generator: torch.Generator) -> list[float]:
        """Train, and return the mean loss of each epoch."""
        options = {**(self.options or {}), **({} if codes is None else {"target": Labels()})}
        criterion = method(self.method, eps=self.eps, gather=False, **options).double()
        x = torch.from_numpy((X - self.mean_) / self.scale_)
        network, second = self.network_, self.network_
        parameters = [*network.parameters(), *criterion.parameters()]
        partner = None
        if self.second_ is not None:
            second, mean, scale = self.second_
            partner = torch.from_numpy((X2 - mean) / scale)
            parameters += second.parameters()
        elif X2 is not None:
            partner = torch.from_numpy((X2 - self.mean_) / self.scale_)
        optimizer = torch.optim.Adam(parameters, lr=self.lr)
        losses, n = [], len(x)
        for _ in range(self.epochs):
            order, total = torch.randperm(n, generator=generator), 0.0
            batches = [batch for batch in order.split(self.batch_size) if len(batch) > 1]
            for batch in batches:
                one = x[batch] if partner is not None else self._view(x, batch, generator)
                two = partner[batch] if partner is not None else self._view(x, batch, generator)
                known = {} if codes is None else {"labels": codes[batch]}
                loss = criterion(network(one), second(two), **known)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() / len(batches)
            losses.append(total)
        return losses

    def _view(self, x: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Rows of which some entries come from other rows of the same column (Bahri et al. 2022)."""
        shape = (len(rows), x.shape[1])
        other = torch.randint(len(x), shape, generator=generator)
        replaced = torch.rand(shape, generator=generator) < self.corruption
        return torch.where(replaced, x.gather(0, other), x[rows])


def _standard(X: Any) -> tuple[Any, Any]:
    scale = X.std(0)
    return X.mean(0), np.where(scale > 0, scale, 1.0)


def _network(inputs: int, hidden: int, out: int, generator: torch.Generator) -> nn.Module:
    network = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, out)).double()
    for layer in network:
        if isinstance(layer, nn.Linear):  # as torch does, but from the generator
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return network


@torch.no_grad()
def _encoded(network: nn.Module, X: Any, mean: Any, scale: Any) -> Any:
    x = torch.from_numpy((X - mean) / scale)
    return nn.functional.normalize(network(x), dim=1).numpy()
