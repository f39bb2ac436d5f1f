"""Fallback: nodes without a rule run by ONNX Runtime if it is installed, else by ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autosched.errors import GraphError, UsageError
from autosched.graph.graph import Array
from autosched.graph.onnx.schemas import domain_of

DOMAINS = {"", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft"}  # of the operators that engines have

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    from autosched.graph.onnx.split import ModelPart

    Values = Mapping[str, Array | list[Array]]


@dataclass(frozen=True)
class Fallback:
    """A part of a model as a function of the arrays that it reads, by name. `engine`: what runs it."""

    part: ModelPart
    engine: str
    session: Any  # of onnxruntime, or a ReferenceEvaluator of onnx; both have the method run

    def __call__(self, values: Values) -> dict[str, Array]:
        """Return the results by name. Raises UsageError for values that the engine does not accept."""
        try:
            results = self.session.run(list(self.part.outputs), {name: values[name] for name in self.part.inputs})
        except Exception as error:  # the classes of both engines have no common base
            what = ", ".join(operators(self.part))
            raise UsageError(f"{self.engine}, which runs {what} of the model, failed: {_first_line(error)}") from error
        return dict(zip(self.part.outputs, results, strict=True))


def check_domains(part: ModelPart) -> None:
    """Raise GraphError for a node of a domain that no engine has operators of, before a part is called."""
    own = {function.domain for function in part.source.functions}
    unknown = [node for node in part.nodes if domain_of(node) not in DOMAINS | own]
    if unknown:
        raise GraphError(f"no other engine runs {', '.join(operators(replace(part, nodes=tuple(unknown))))}")


def operators(part: ModelPart) -> list[str]:
    """Return the operators of a part's nodes, each once."""
    return list(dict.fromkeys(f"{node.domain}.{node.op_type}".lstrip(".") for node in part.nodes))


def fallback_for(part: ModelPart, types: Mapping[str, TypeProto], threads: int | None) -> Fallback:
    """Return the part run by another engine, for inputs of these types. Raises GraphError if none accepts it."""
    model, reasons = part.model(types), list[str]()
    for engine, make in (("onnxruntime", _onnxruntime_session), ("onnx.reference", _reference_evaluator)):
        try:
            return Fallback(part, engine, make(model, threads))
        except ImportError:
            reasons.append(f"{engine} is not installed (pip install {engine})")
        except Exception as error:  # the classes of both engines have no common base
            reasons.append(f"{engine}: {_first_line(error)}")
    raise GraphError(f"no other engine runs {', '.join(operators(part))}: {'; '.join(reasons)}")


def _onnxruntime_session(model: ModelProto, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or 0
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _reference_evaluator(model: ModelProto, threads: int | None) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
