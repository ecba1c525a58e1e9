"""Refusals in the log: one line each, but never so many that they bury everything else.

Knows what went wrong in TLS in plain words. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time

logger = logging.getLogger(__name__)

_MAX_LINES = 100
_WINDOW_S = 60.0

_IN_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks an older TLS than 1.3",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate, and none was shown",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the job's CA",
}


class RefusalLog:
    """At most so many lines a minute; the rest are counted and told with the next one."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._num_lines = 0
        self._num_kept_back = 0

    def log(self, peer: str, why: str) -> None:
        now_s = time.monotonic()
        if now_s - self._since_s > _WINDOW_S:
            if self._num_kept_back:
                logger.warning("refused %d more links unseen", self._num_kept_back)
            self._since_s, self._num_lines, self._num_kept_back = now_s, 0, 0
        if self._num_lines < _MAX_LINES:
            self._num_lines += 1
            logger.warning("refused a link from %s: %s", peer, why)
        else:
            self._num_kept_back += 1


def render_trouble(error: BaseException) -> str:
    """Why a connection failed, on one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not one of this job's: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or error.__class__.__name__
        return _IN_WORDS.get(reason, f"TLS failed ({reason.lower().replace('_', ' ')})")
    if isinstance(error, asyncio.TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or "it hung up"
