"""Estimators from flat parameters, for tests that go through many of them."""

from typing import Any


def nested(kind: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as `set_params` takes them: those of options with the name of these."""
    found = {}
    for name, value in params.items():
        home = kind._home_of(name)
        options = kind._options[home].values() if home else ()
        own = next((x for x in (one._own_name(name) for one in options if one) if x), name)
        found[f"{home}__{own}" if home else name] = value
    return found


def built(kind: Any, *args: Any, **params: Any) -> Any:
    """Return an estimator; parameters go to the options that have them, or are left out."""
    if not hasattr(kind, "_home_of"):
        return kind(*args, **params)
    model = kind(*args, **{name: x for name, x in params.items() if not kind._home_of(name)})
    for name, value in params.items():
        home = kind._home_of(name)
        options = model._chosen(home) if home else None
        own = options and type(options)._own_name(name)
        if own:
            model.set_params(**{f"{home}__{own}": value})
    return model
