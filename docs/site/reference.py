"""Add the reference to the site: pages that are made from the code when the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference_errors import errors_page
from reference_metrics import metrics_page
from reference_python import python_page
from reference_rest import rest_page
from reference_settings import settings_page

from djinn_lab.pool.api.app import create_app
from djinn_lab.pool.assembly import assemble
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.context import PoolContext
from djinn_lab.pool.database.address import sqlite_url
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.launchers.local import LocalLauncher


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. MkDocs calls this before it reads the pages."""
    with _pool() as pool:
        pages = {
            "rest": rest_page(create_app(pool)),
            "settings": settings_page(),
            "errors": errors_page(),
            "python": python_page(),
            "metrics": metrics_page(pool.driver.core.accounts.snapshot()),
        }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


@contextmanager
def _pool() -> Iterator[PoolContext]:
    """Make a pool's parts, without devices and without a server."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        store = Store(sqlite_url(directory / "pool.sqlite3"))
        launcher = LocalLauncher(directory)
        blobs = BlobStore(directory, 2**20)
        yield assemble("documented", "token", launcher, (), blobs, store, lambda: None)
        store.close()
