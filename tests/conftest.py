"""Hypothesis draws the same examples on every CI run, so that a red run means a change; elsewhere it explores."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
