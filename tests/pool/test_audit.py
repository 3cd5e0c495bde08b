"""The audit log: each change with its user is in the database, on either kind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pool_kit import Client, act, http, new_user, rest, running_pool

pytestmark = pytest.mark.processes


def test_audit_records_changes_with_their_user_and_survives_the_pool(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        name, token = new_user(info)
        with http(info, token) as ann, http(info) as owner, Client(info, token) as client:
            job = client.submit(act("sleep 30"))
            client.until(job, "RUNNING")
            assert ann.post(f"/v1/jobs/{job}/cancel").status_code == 200
            assert ann.put("/v1/accounts/vision", json={"weight": 9.0}).status_code == 403
            assert owner.put("/v1/accounts/vision", json={"weight": 2.0}).status_code == 200
            assert ann.get("/v1/audit").status_code == 403
    with running_pool(tmp_path, "cpu:1", database=database) as info, http(info) as owner:
        rows = owner.get("/v1/audit").json()
        with closing(rest(info)) as client:
            me = client.status().user
    found = [(row["user"], row["action"], row["status"]) for row in rows]
    assert found == [
        (me, "PUT /v1/accounts/vision", 200),
        (name, "PUT /v1/accounts/vision", 403),
        (name, f"POST /v1/jobs/{job}/cancel", 200),
        (me, "POST /v1/users", 201),
    ]
    assert rows[0]["body"] == '{"weight":2.0}'
    assert token not in str(rows)
