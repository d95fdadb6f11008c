"""``--record``: for one run, a deployed Python function is called through a recorder.

A layer holds ``consumer/function_recorder.py`` and the plan of the faults that it carries out; the
function's handler setting names it, and an
environment variable names the handler that was there before. That variable is all that is needed
to put the function back, so a crash in between loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.errors import TargetError, UsageError
from loadtest.aws.account import Account, RefusedError
from loadtest.aws.resources import BUSY_LIMIT_S, pages
from loadtest.aws.stack import zip_of

_MODULE = "onceproof_recorder"
_HANDLER = f"{_MODULE}.handler"
_VARIABLE = "ONCEPROOF_HANDLER"
_FAULTS = "onceproof_faults.json"
_SOURCE = Path(__file__).parents[2] / "consumer" / "function_recorder.py"
_TOO_OLD = ("python3.8", "python3.9")  # those before can no longer be updated
_MOST_LAYERS = 5  # of a function (Lambda developer guide, "Lambda quotas")
_UPDATE_LIMIT_S = 120.0


def layer_name(run_id: str) -> str:
    """The layer of a run; known before it exists."""
    return f"{run_id}-recorder"


async def check_recordable(account: Account, function: str, mapping_id: str) -> None:
    """:raises UsageError: this function cannot be recorded."""
    mapping = await account.call("lambda", "GetEventSourceMapping", UUID=mapping_id)
    qualifier = str(mapping["FunctionArn"]).rpartition(":function:")[2].partition(":")[2]
    if qualifier:
        raise UsageError(
            f"--record: the mapping invokes {function}:{qualifier}, whose settings cannot be "
            "changed. Leave it out, or let the mapping invoke the function itself."
        )
    about = await _configuration(account, function)
    runtime = str(about.get("Runtime", about.get("PackageType", "")))
    if not runtime.startswith("python"):
        raise UsageError(
            f"--record is for Python functions deployed as a zip; {function} is {runtime}. Leave "
            "it out: without it the run has the log, the stream and the final items."
        )
    if runtime in _TOO_OLD:
        raise UsageError(
            f"--record needs Python 3.10 or later; function {function} is {runtime}. Leave it out, "
            "or deploy the function with a later runtime."
        )
    if _VARIABLE in _variables(about, function):
        raise UsageError(
            f"--record: function {function} is still recorded by another run. Wait for its end, "
            "or put the function back: loadtest clean --run DIR."
        )
    if len(about.get("Layers", ())) >= _MOST_LAYERS:
        raise UsageError(f"--record: function {function} has {_MOST_LAYERS} layers already.")


async def record_on(account: Account, function: str, layer: str, faults: str | None) -> None:
    """Call the function through the recorder from now on.

    :param faults: the plan of the faults that it meets.
    :raises TargetError: it could not be changed; :func:`record_off` puts right what was.
    """
    about = await _configuration(account, function)
    variables = _variables(about, function)
    files = {f"python/{_MODULE}.py": _SOURCE.read_bytes()}
    if faults is not None:
        files[f"python/{_FAULTS}"] = faults.encode()
    published = await account.call(
        "lambda",
        "PublishLayerVersion",
        LayerName=layer,
        Description="Records the calls of a function under test (onceproof).",
        Content={"ZipFile": zip_of(files)},
        CompatibleRuntimes=[about["Runtime"]],
    )
    await _update(
        account,
        function,
        Handler=_HANDLER,
        Layers=[*_layers(about), published["LayerVersionArn"]],
        Environment={"Variables": {**variables, _VARIABLE: about["Handler"]}},
    )


async def record_off(account: Account, function: str, layer: str) -> None:
    """Put the function back as it was, see that it is, and remove the layer.

    Nothing is to be done where the function is not recorded, or gone.

    :raises TargetError: it could not be put back.
    """
    about = await account.find("lambda", "GetFunctionConfiguration", FunctionName=function)
    if about is not None:
        variables = dict(_variables(about, function))
        original = variables.pop(_VARIABLE, None)
        if original is not None and _has_layer(about, layer):
            layers = [arn for arn in _layers(about) if f":layer:{layer}:" not in arn]
            await _update(
                account,
                function,
                Handler=original,
                Layers=layers,
                Environment={"Variables": variables},
            )
            about = await _configuration(account, function)
            if (about["Handler"], _layers(about)) != (original, layers):
                raise TargetError(
                    f"function {function} was put back and is not as before: its handler is "
                    f"{about['Handler']}, it was {original}. Set it in the AWS console."
                )
    for number in await _versions(account, layer):
        await account.find("lambda", "DeleteLayerVersion", LayerName=layer, VersionNumber=number)
    left = await _versions(account, layer)
    if left:
        raise TargetError(f"version {left[0]} of layer {layer} was deleted and is still there.")


async def is_recorded(account: Account, function: str, layer: str) -> bool:
    """Whether :func:`record_off` has anything to do."""
    about = await account.find("lambda", "GetFunctionConfiguration", FunctionName=function)
    return (about is not None and _has_layer(about, layer)) or bool(await _versions(account, layer))


async def _versions(account: Account, layer: str) -> list[int]:
    """Of the layer, those that there are; a layer without any is none."""
    return [
        int(version["Version"])
        async for version in pages(
            account,
            "lambda",
            "ListLayerVersions",
            "LayerVersions",
            "Marker",
            "NextMarker",
            LayerName=layer,
        )
    ]


async def _configuration(account: Account, function: str) -> dict[str, Any]:
    return await account.call("lambda", "GetFunctionConfiguration", FunctionName=function)


def _variables(about: Mapping[str, Any], function: str) -> Mapping[str, str]:
    """:raises TargetError: they cannot be read, so they could not be put back either."""
    environment = about.get("Environment", {})
    if "Error" in environment:
        raise TargetError(
            f"--record: the environment of function {function} cannot be read "
            f"({environment['Error'].get('Message')}), so it could not be put back. Allow "
            "kms:Decrypt for its key, or leave --record out."
        )
    return dict(environment.get("Variables", {}))


def _has_layer(about: Mapping[str, Any], layer: str) -> bool:
    return any(f":layer:{layer}:" in arn for arn in _layers(about))


def _layers(about: Mapping[str, Any]) -> list[str]:
    return [str(layer["Arn"]) for layer in about.get("Layers", ())]


async def _update(account: Account, function: str, **settings: Any) -> None:
    """Change settings and wait until they are in force: until then the old ones run."""

    async def asked() -> bool | None:
        try:
            await account.call(
                "lambda", "UpdateFunctionConfiguration", FunctionName=function, **settings
            )
        except RefusedError as error:
            if error.code != "ResourceConflictException":  # an update is under way
                raise
            return None
        return True

    async def done() -> bool | None:
        about = await _configuration(account, function)
        status = about.get("LastUpdateStatus")
        if status == "Failed":
            raise TargetError(
                f"the settings of function {function} could not be changed: "
                f"{about.get('LastUpdateStatusReason')}"
            )
        return True if status == "Successful" and about.get("State") == "Active" else None

    await account.wait(f"function {function} is being updated", asked, limit_s=BUSY_LIMIT_S)
    await account.wait(
        f"the settings of function {function} were not in force", done, limit_s=_UPDATE_LIMIT_S
    )
