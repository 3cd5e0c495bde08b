"""The database's tables."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()
Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""One that counts for years. SQLite has but one kind, and generates it under this name only."""

schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, nullable=False))

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("pool", sa.String, nullable=False),
    sa.Column("session", sa.String, nullable=False),
    sa.Column("user", sa.String, nullable=False, index=True),
    sa.Column("state", sa.String, nullable=False, index=True),
    sa.Column("submitted_at", sa.Float, nullable=False, index=True),
    sa.Column("view", sa.Text, nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("resume", sa.Text, nullable=False, server_default=""),
)
"""``view``: the job as the API shows it, in JSON. ``resume``: what a next pool needs to continue it, in JSON;
empty for a job that has ended."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("session", sa.String, primary_key=True),
    sa.Column("state", sa.LargeBinary, nullable=False),
)
"""Open sessions; see :mod:`djinn_lab.pool.database.sessions` for these tables and those below. ``state`` and
the other binary columns are MessagePack."""

lineages = sa.Table(
    "lineages",
    metadata,
    sa.Column("session", sa.String, primary_key=True),
    sa.Column("state", sa.LargeBinary, nullable=False),
)

copies = sa.Table(
    "copies",
    metadata,
    sa.Column("session", sa.String, primary_key=True),
    sa.Column("manifest", sa.LargeBinary, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("session", sa.String, primary_key=True),
    sa.Column("serial", Number, primary_key=True),
    sa.Column("job", sa.String, nullable=False, index=True),
    sa.Column("segment", sa.Integer, nullable=False),
    sa.Column("run", sa.LargeBinary, nullable=False),
)
"""``run``: without its program, which is that of the segment in ``programs``."""

releases = sa.Table(
    "releases",
    metadata,
    sa.Column("session", sa.String, primary_key=True),
    sa.Column("serial", Number, primary_key=True),
    sa.Column("released", sa.LargeBinary, nullable=False),
)

answers = sa.Table(
    "answers",
    metadata,
    sa.Column("session", sa.String, primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
)
"""The last answers to each session's client. ``number`` counts them."""

programs = sa.Table(
    "programs",
    metadata,
    sa.Column("id", Number, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("segment", sa.Integer, nullable=False),
    sa.Column("nbytes", sa.Integer, nullable=False),
    sa.Column("program", sa.LargeBinary, nullable=False),
    sa.Column("timings", sa.LargeBinary),
    sa.UniqueConstraint("job", "segment"),
)

journal = sa.Table(
    "journal",
    metadata,
    sa.Column("seq", Number, primary_key=True),
    sa.Column("pool", sa.String, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("core", sa.String, nullable=False),
    sa.Column("event", sa.String, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("commands", sa.String, nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("account", sa.String),
)
"""``account``: the account above the user's own in the share tree, None for the top."""

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("user", sa.String, nullable=False, index=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("scopes", sa.String),
)
"""Tokens by the SHA-256 digest of their secrets. ``scopes``: separated by commas, None for no limit."""

accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("account", sa.String, primary_key=True),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("limits", sa.Text, nullable=False),
    sa.Column("min_runtime_s", sa.Float),
)
"""Targets of the share tree; ``limits`` in JSON."""

steering = sa.Table(
    "steering",
    metadata,
    sa.Column("kind", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("event", sa.Text, nullable=False),
)
"""Cordons, reservations and descriptions of devices that hold, as the events that made them, in JSON."""

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("id", Number, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String, nullable=False, index=True),
    sa.Column("segment", sa.Integer, nullable=False),
    sa.Column("account", sa.String, nullable=False, index=True),
    sa.Column("user", sa.String, nullable=False),
    sa.Column("device", sa.String, nullable=False),
    sa.Column("started_at_s", sa.Float, nullable=False),
    sa.Column("ended_at_s", sa.Float, nullable=False, index=True),
    sa.Column("memory_byte_s", sa.Float, nullable=False),
    sa.Column("transfer_bytes", sa.Float, nullable=False),
)
"""The usage ledger: a row for every stretch of run time, written in one transaction with what it led to."""

lives = sa.Table(
    "lives",
    metadata,
    sa.Column("pool", sa.String, primary_key=True),
    sa.Column("began_at", sa.Float, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
    sa.Column("devices", sa.Text, nullable=False),
)
"""When pools served; see :mod:`djinn_lab.pool.database.pool_lives`. ``devices``: their names, in JSON."""

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", Number, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("pool", sa.String, nullable=False),
    sa.Column("user", sa.String, nullable=False, index=True),
    sa.Column("action", sa.String, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String, nullable=False, server_default=""),
)
"""Changes, refusals and faults, in a chain; see :mod:`djinn_lab.protocol.rest.audit`."""

audit_chain = sa.Table(
    "audit_chain",
    metadata,
    sa.Column("chain", sa.Integer, primary_key=True),
    sa.Column("head_row", Number, nullable=False),
    sa.Column("head_hash", sa.String, nullable=False),
    sa.Column("root_hash", sa.String, nullable=False),
)
"""One row: the last row of the audit, and the hash before the oldest that is kept."""

device_profiles = sa.Table(
    "device_profiles",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("threads", sa.Integer, primary_key=True),
    sa.Column("torch_version", sa.String, primary_key=True),
    sa.Column("curves", sa.LargeBinary, nullable=False),
)
"""What devices of this name measured (:class:`djinn_lab.srg.curves.DeviceCurves`, in MessagePack), by thread
count and torch version."""

forecasts = sa.Table(
    "forecasts",
    metadata,
    sa.Column("kind", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("learnt", sa.LargeBinary, nullable=False),
)
"""What forecasts are made from; see :mod:`djinn_lab.pool.database.forecasts`. ``at_s``: when something of it
was learnt last."""

published = sa.Table(
    "published",
    metadata,
    sa.Column("user", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("account", sa.String, nullable=False),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)
"""Data that users said is there. ``account``: of the user, ``job``: by which it was, empty for none."""

notebooks = sa.Table(
    "notebooks",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("pool", sa.String, nullable=False),
    sa.Column("user", sa.String, nullable=False),
    sa.Column("key", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False, index=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("finished_at", sa.Float),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("notebook", sa.Text, nullable=False),
    sa.Column("folder", sa.String, nullable=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("source", sa.LargeBinary, nullable=False),
    sa.Column("executed", sa.LargeBinary),
    sa.UniqueConstraint("user", "key"),
)
"""Notebooks that run as batch jobs. ``notebook``: its state in the core, in JSON. ``digest``: of all that
was asked for. ``source``: as submitted, ``executed``: by the latest attempt that ended, as files' bytes."""
