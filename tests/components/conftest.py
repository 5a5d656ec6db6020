"""What the tests of components share."""

from __future__ import annotations

from typing import Any

import pytest


class _NoCredential:
    """Asks nobody: what validates offline needs no token."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        raise AssertionError("the validation asked the network")


@pytest.fixture(scope="session")
def offline_client() -> Any:
    """azure-ai-ml's own client, whose validation is public and needs no network."""
    from azure.ai.ml import MLClient

    return MLClient(_NoCredential(), "subscription", "group", "workspace")
