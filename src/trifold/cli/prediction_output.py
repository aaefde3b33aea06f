"""Predictions of `trifold predict` as lines of text or JSON, and as cells of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trifold.cli.batch import one_line
from trifold.cli.predictor import Predictor
from trifold.cli.tables import Input
from trifold.errors import printable
from trifold.jsonfiles import json_line
from trifold.predict.classify import Label

# --- lines ----------------------------------------------------------------------------------------


def format_line(predictor: Predictor, prediction: Any) -> str:
    """One line: the results separated by tabs, each with its probability last; empty for a blank
    input.
    """
    if prediction is None:
        return ""
    if not predictor.every:
        return _format_prediction(predictor.task, prediction)
    classes = _format_labels(predictor.labels_of(prediction))
    if predictor.options["threshold"] is None:
        return classes
    # What is predicted stands before all classes.
    chosen = predictor.chosen(prediction)
    predicted = "" if chosen is None else _format_prediction(predictor.task, chosen)
    return f"{predicted} / {classes}"


def format_json(item: Input, predictor: Predictor, prediction: Any) -> str:
    """One line of JSON: the input and the prediction."""
    values = {"source": item.text}
    if item.pair is not None:
        values["pair"] = item.pair
    chosen = predictor.chosen(prediction)
    values["task"] = predictor.task
    values["outputs"] = [] if chosen is None else to_json(chosen)
    if predictor.every:
        values["probabilities"] = predictor.probabilities(prediction)
    return json_line(values)


def to_json(value: Any) -> Any:
    """Predictions as JSON values: an object for a named tuple, a list of numbers for a vector."""
    if hasattr(value, "_asdict"):
        return {key: to_json(item) for key, item in value._asdict().items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def _format_prediction(task: str, prediction: Any) -> str:
    match task:
        case "fill-mask":
            return " / ".join(map(_format_tokens, prediction))
        case "classify" | "choose":
            return _format_labels(prediction)
        case "tag":
            return "\t".join(map(_format_tag, prediction))
        case "answer":
            return "\t".join(f"{_format_span(span)} {span.score:.4f}" for span in prediction)
        case "similarity" if isinstance(prediction, float):
            return f"{prediction:.4f}"
        case "generate":
            return one_line(prediction[0].text)
        case "search":
            return "\n".join(
                f"{hit.number}\t{hit.score:.4f}\t{one_line(hit.text)}" for hit in prediction
            )
        case "next-sentence":
            return f"{prediction.label} {prediction.score:.4f}"
        case _:
            return " ".join(f"{number:.6g}" for number in prediction.tolist())


def _format_tokens(tokens: Sequence[Any]) -> str:
    """The candidates for a mask; one of spaces only is quoted."""
    return "\t".join(f"{_visible(token.text)} {token.score:.4f}" for token in tokens)


def _visible(text: str) -> str:
    if not text.strip():
        return repr(text)
    return printable(one_line(text))


def _format_labels(labels: Sequence[Any]) -> str:
    return "\t".join(f"{printable(one_line(label.label))} {label.score:.4f}" for label in labels)


def _format_tag(tag: Any) -> str:
    return f"{printable(one_line(tag.label))} {_format_span(tag)} {tag.score:.4f}"


def _format_span(span: Any) -> str:
    """A part of a text, with its positions."""
    return f"{span.start}:{span.end} {one_line(span.text)}"


# --- cells of a table -----------------------------------------------------------------------------


def added_columns(predictor: Predictor) -> list[str]:
    """The names of the columns that predictions add to a table: the prediction; its score, of one
    label; and with the probability of every class a column for each.
    """
    columns = ["prediction"]
    if predictor.has_score:
        columns.append("score")
    if predictor.every:
        columns += [f"p_{label}" for label in predictor.classes]
    return columns


def cells(predictor: Predictor, item: Input, prediction: Any) -> list[Any]:
    """The values of `added_columns` for a row; None where it has none."""
    value, score = _value_and_score(predictor, item, prediction)
    values = [value, score] if predictor.has_score else [value]
    if predictor.every:
        probabilities = predictor.probabilities(prediction)
        values += [probabilities.get(label) for label in predictor.classes]
    return values


def _value_and_score(predictor: Predictor, item: Input, prediction: Any) -> tuple[Any, Any]:
    """The prediction for a row and its score, None without one.

    The prediction is the label of a class or of several, the number of a regression, the tag of
    each word, or the output for a text; else JSON.
    """
    if predictor.generates:
        return prediction[0].text if prediction else "", None
    chosen = predictor.chosen(prediction)
    if chosen is None:
        return None, None
    if predictor.task == "tag" and not isinstance(item.text, str):
        return [tag.label for tag in chosen], None
    if predictor.task == "choose":
        return chosen[0].label, chosen[0].score
    if predictor.task == "classify":
        return _class_and_score(predictor, chosen)
    return to_json(chosen), None


def _class_and_score(predictor: Predictor, labels: list[Label]) -> tuple[Any, Any]:
    """The prediction of a classification and its score."""
    if predictor.is_regression:
        return labels[0].score, None
    if predictor.has_several_labels:
        # `chosen` has applied a threshold already.
        least = 0.5 if predictor.options["threshold"] is None else 0.0
        return to_json([label for label in labels if label.score > least]), None
    most = predictor.options["top_k"]
    if most > 1:
        return to_json(labels[:most]), None
    if not labels:
        return None, None
    return labels[0].label, labels[0].score
