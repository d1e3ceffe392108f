"""Estimators from flat parameters, for tests that go through many of them."""

from typing import Any


def _own_name(options: Any, name: str) -> str | None:
    """Return the parameter of options, a class or None, with this name, or with its prefix."""
    own = name.removeprefix("snapshot_")
    return own if own in getattr(options, "__dataclass_fields__", ()) else None


def _home_of(kind: Any, name: str) -> str | None:
    """Return the last parameter whose options have `name`; None if the estimator has it itself."""
    if name in kind._get_param_names():
        return None
    homes = reversed(kind._options.items())
    return next((h for h, kinds in homes if any(_own_name(k, name) for k in kinds.values())), None)


def nested(kind: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as `set_params` takes them: those of options with the name of these."""
    found = {}
    for name, value in params.items():
        home = _home_of(kind, name)
        options = kind._options[home].values() if home else ()
        own = next((x for x in (_own_name(one, name) for one in options) if x), name)
        found[f"{home}__{own}" if home else name] = value
    return found


def built(kind: Any, *args: Any, **params: Any) -> Any:
    """Return an estimator; parameters go to the options that have them, or are left out."""
    if not hasattr(kind, "_options"):
        return kind(*args, **params)
    model = kind(*args, **{name: x for name, x in params.items() if not _home_of(kind, name)})
    for name, value in params.items():
        home = _home_of(kind, name)
        own = home and _own_name(type(model._chosen(home)), name)
        if own:
            model.set_params(**{f"{home}__{own}": value})
    return model
