"""Requests of documents that tests write as token ids."""

import numpy as np

from pytest_lmgate.settings.gate_options import Windowing
from pytest_lmgate.windows.protocols import plan_windows
from pytest_lmgate.windows.requests import Requests, window_requests
from pytest_lmgate.windows.tokens import Streams


def document_requests(*documents: np.ndarray, length: int = 16) -> Requests:
    """Return the requests of the dataset ``d``: windows of at most so many tokens of documents with these token ids."""
    plan = plan_windows(Windowing("document", length, length), [len(ids) for ids in documents])
    return window_requests(Streams(documents, None), plan, "d")
