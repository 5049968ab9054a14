"""What a provider answered or failed at, as errors of ours: they name it, and never hold its key."""

from __future__ import annotations

import email.utils
import math
import os
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import msgspec

from router.errors import RouterError
from router.fetch import describe, without_secrets
from router.logs import HIDDEN
from router.providers.store import Provider

MAX_RETRY_S: Final = 3_600.0
#: Passed on as they are: what is wrong is the request itself, and the provider says so better.
REQUEST_FAULTS: Final = frozenset({400, 405, 406, 410, 411, 413, 415, 416, 422, 431, 501})
#: Those of them that clients should see as they are, whoever on the way said so.
_PASSED_STATUSES: Final = frozenset({400, 413, 422})

_TAG: Final = re.compile(r"<[^>]*>")


class ProviderError(RouterError):
    """A provider gave no answer: no byte of one was passed on, so another model may still answer."""

    code = "provider_error"
    status = 502


class ProviderCut(RouterError):
    """An answer of a provider broke off after it had begun."""

    code = "provider_cut"
    status = 502


class ProviderLoop(ProviderError):
    """The request came back to where it came from."""

    code = "provider_loop"
    status = 508


def not_reached(provider: Provider, error: BaseException) -> ProviderError:
    """No connection, or none that lasted until an answer began."""
    return ProviderError(
        f"The provider {provider.name} ({provider.url}) cannot be reached: {_words(error)}.",
        code="provider_not_reached",
        retry_after_s=1.0,
    )


def no_http(provider: Provider, error: aiohttp.ClientResponseError) -> ProviderError:
    """What came is no answer that HTTP has. It can be reached, and other requests may pass."""
    why = error.message.partition("\n")[0].strip().rstrip(":.")[:200]
    return ProviderError(
        f"The provider {provider.name} gave an answer that cannot be read: {why}.",
        code="provider_answer_wrong",
        hint=f"Is {provider.url} its base URL, with https:// or http:// as it wants it?",
    )


def down(provider: Provider, problem: str, retry_after_s: float) -> ProviderError:
    """It was found dead a moment ago."""
    return ProviderError(
        problem or f"The provider {provider.name} does not answer.",
        code="provider_not_reached",
        retry_after_s=max(1.0, retry_after_s),
    )


def cut(provider: Provider, error: BaseException) -> ProviderCut:
    """The answer's end did not come."""
    if isinstance(error, TimeoutError):
        return ProviderCut(
            f"The provider {provider.name} sent nothing for {provider.idle_s:g} s in the midst of its answer."
        )
    return ProviderCut(f"The provider {provider.name} ended before its answer was complete: {_words(error)}.")


def unfinished(provider: Provider) -> ProviderCut:
    """A stream ended in good order, but without its last event."""
    return ProviderCut(f"The provider {provider.name} ended its stream before the answer was complete.")


def no_key(provider: Provider) -> ProviderError:
    """Its key is kept where it cannot be had now."""
    where = f"the variable {provider.variable}" if provider.variable else "the keyring"
    return ProviderError(
        f"The key of the provider {provider.name} cannot be had: {where} does not give it.",
        code="provider_key_missing",
        hint=_set_key(provider),
    )


def refused_key(provider: Provider, status: int, told: str) -> ProviderError:
    """It wants a key, or another one."""
    given = "takes no request without a key" if provider.key == "none" else "refused its key"
    return ProviderError(
        f"The provider {provider.name} {given} (status {status}).{_quoted(told)}",
        code="provider_key_refused",
        hint=_set_key(provider),
    )


def _set_key(provider: Provider) -> str:
    return f"Set it with: lemon-tray provider add {provider.name} {provider.url}"


def redirected(provider: Provider, location: str) -> ProviderError:
    """It points elsewhere; the key goes nowhere else."""
    return ProviderError(
        f"The provider {provider.name} points to {without_secrets(location)[:200]}. Redirects are not "
        "followed, so that its key reaches no other host.",
        code="provider_redirects",
        hint="If that is the right address, add the provider with it.",
    )


def wrong_kind(provider: Provider, kind: str, body: bytes) -> ProviderError:
    """It answered with something else than JSON or events, such as a web page."""
    shown = kind.partition(";")[0].strip()[:80] or "no content type"
    return ProviderError(
        f"The provider {provider.name} answered with {shown} where JSON was expected.{_quoted(_text(body))}",
        code="provider_answer_wrong",
        hint=f"Is {provider.url} its base URL? Most end in /v1.",
    )


def no_json(provider: Provider, body: bytes) -> ProviderCut:
    """A whole answer that is no JSON object, such as one that was cut off where nobody could tell."""
    return ProviderCut(
        f"The provider {provider.name} gave an answer that is no complete JSON object."
        f"{_quoted(_text(body[:300]))}",
        code="provider_answer_wrong",
    )


def failed_within(provider: Provider, body: bytes) -> ProviderCut:
    """An error that came as if it were an answer, with the status 200."""
    return ProviderCut(
        f"The provider {provider.name} failed.{_quoted(told_in(body, ''))}", code="provider_failed"
    )


def bad_list(provider: Provider, why: str) -> ProviderError:
    """Its list of models cannot be used."""
    return ProviderError(
        f"The provider {provider.name} lists no models at {provider.url}/models: {why}.",
        code="provider_answer_wrong",
        hint="Is that its base URL? Most end in /v1. One that has no list: name its models with --model.",
    )


def of_status(
    provider: Provider, status: int, headers: Mapping[str, str], body: bytes, secret: str
) -> ProviderError | None:
    """The error for a status of 300 or more; None for a fault of the request itself, which is passed on."""
    told = told_in(body, secret)
    if 300 <= status < 400:
        return redirected(provider, headers.get("Location", "nowhere"))
    if status in (401, 403, 407):
        return refused_key(provider, status, told)
    if status == 429 or (status == 503 and "Retry-After" in headers):
        return ProviderError(
            f"The provider {provider.name} wants fewer requests (status {status}).{_quoted(told)}",
            code="provider_busy",
            status=status,
            retry_after_s=_seconds(headers.get("Retry-After", "")),
        )
    if status == 404:
        return ProviderError(
            f"The provider {provider.name} does not know the model, or the call (status 404).{_quoted(told)}",
            code="provider_not_found",
            status=404,
        )
    if status == 402:
        return ProviderError(
            f"The provider {provider.name} wants to be paid first (status 402).{_quoted(told)}",
            code="provider_unpaid",
        )
    if status == 508:
        return ProviderLoop(f"The provider {provider.name} leads back to this router.{_quoted(told)}")
    if status in _PASSED_STATUSES:
        # Not said as the provider's own: a page of a gateway's. The status is true all the same.
        return ProviderError(
            f"The provider {provider.name} refused the request (status {status}).{_quoted(told)}",
            code="provider_refused",
            status=status,
        )
    if status not in REQUEST_FAULTS:
        return ProviderError(
            f"The provider {provider.name} failed (status {status}).{_quoted(told)}",
            code="provider_failed",
        )
    return None


def told_in(body: bytes, secret: str) -> str:
    """What an error's body says, in short, without the key."""
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or ""
        text = error if isinstance(error, str) else ""
    else:
        text = _text(body)
    return text.replace(secret, HIDDEN) if secret else text


def _seconds(text: str) -> float:
    """Seconds that a `Retry-After` asks for, a number or a date, within an hour; 1 if it says nothing."""
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 1.0
    if not math.isfinite(seconds):
        return 1.0
    return min(max(seconds, 0.0), MAX_RETRY_S)


def _words(error: BaseException) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"there is no host {error.host}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = str(getattr(error.certificate_error, "verify_message", "")).rstrip(".")
        return f"its certificate is not trusted{f' ({why})' if why else ''}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        reason = str(getattr(error.os_error, "reason", None) or "").replace("_", " ").lower()
        return f"no encryption could be agreed on{f' ({reason})' if reason else ''}; it may have none"
    if isinstance(error, aiohttp.ClientOSError) and error.errno:
        return os.strerror(error.errno).lower()
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection was closed, or what came is not what its headers say"
    return describe(error)


def _text(body: bytes) -> str:
    """The words of a page or a plain text."""
    return " ".join(_TAG.sub(" ", body[:4096].decode("utf-8", "replace")).split())


def _quoted(told: str) -> str:
    short = " ".join(told.split())[:300].rstrip(".")
    return f" It says: {short}." if short else ""


def itself(provider: Provider) -> ProviderLoop:
    """The provider is the router that asks."""
    return ProviderLoop(
        f"{provider.url} is this router itself; it cannot be a provider of its own.", status=400
    )
