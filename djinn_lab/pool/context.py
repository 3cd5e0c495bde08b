"""What the parts of a running pool share."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from djinn_lab.jobs.autoscaling import ScalingLimits
from djinn_lab.pool.api.queue_report import expected_starts
from djinn_lab.pool.authentication import Authentication
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.database.pool_lives import LifeWriter
from djinn_lab.pool.database.store import Store, write_measurement
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.execution.elastic_hosts import ElasticHosts
from djinn_lab.pool.execution.host_links import HostLinks
from djinn_lab.pool.execution.leaving_hosts import LeavingHosts
from djinn_lab.pool.identity.admission import Admission
from djinn_lab.pool.metrics.pool import Metrics
from djinn_lab.pool.notebooks.service import NotebookService
from djinn_lab.pool.sessions.detached import DetachedRules, close_left_sessions
from djinn_lab.pool.user_limits import UserLimits
from djinn_lab.protocol.messages import RequestRefused

TICK_S = 0.25
REFRESH_EVERY_TICKS = 4
LAG_TICKS = 40
FORECAST_JOBS_MAX = 200
TOKEN_ENDED = "The token of this connection has expired or was revoked. Open a session with another one."
ROLE_LOST = (
    "The user of this connection has the role viewer now, which runs no cells. An admin can change that."
)
MIDDLE_COLLECTIONS_MAX = 200
"""Collections of the middle generation after which a full one is due though cells run. A full one stops the
event loop for 0.2 s with a thousand sessions, and almost nothing here is in a cycle."""


def spare_full_collections() -> None:
    """Leave full garbage collections to :class:`Heartbeat`, and what was imported out of them."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, MIDDLE_COLLECTIONS_MAX)


def tokens_in_use(driver: Driver) -> set[str]:
    """Return the digests of the tokens of all connections."""
    return {session.link.token for session in driver.registry if session.link is not None}


def disconnect_ended_tokens(driver: Driver, authentication: Authentication) -> None:
    """Close the connections whose tokens have expired or were revoked; their sessions wait for another one as
    after a broken connection. Where the user may run no cells any more, the session's cells end, too."""
    for session in driver.registry:
        link = session.link
        if link is None or not link.token:
            continue
        if not authentication.is_valid(link.token):
            driver.await_client(session)
            link.send(RequestRefused("token", TOKEN_ENDED))
            link.close()
        elif not authentication.runs_cells(link.token):
            driver.detach(session)
            link.send(RequestRefused("token", ROLE_LOST))
            link.close()


class Heartbeat:
    """Do what is due by the clock, and measure how late the event loop runs."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        authentication: Authentication,
        admission: Admission,
        rules: DetachedRules,
        life: LifeWriter,
        scaling: ScalingLimits | None = None,
    ) -> None:
        self._rules = rules
        self._life = life
        self._driver = driver
        self._leaving_hosts = LeavingHosts(driver)
        self._host_links = HostLinks(driver)
        self._elastic_hosts = ElasticHosts(driver, scaling)
        self._authentication = authentication
        self._admission = admission
        self._store = store
        self._lags: list[float] = []

    @property
    def lag_s(self) -> float:
        """Return the worst delay of the last ten seconds."""
        return max(self._lags, default=0.0)

    async def run(self) -> None:
        try:
            await self._beat()
        finally:
            self._elastic_hosts.stop()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        ticks = 0
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lags = [*self._lags[1 - LAG_TICKS :], max(0.0, loop.time() - due_s)]
            ticks += 1
            self._driver.tick()
            self._driver.calibrate_idle()
            self.save(learnt=ticks % REFRESH_EVERY_TICKS == 0, life=self._life.due(self._now_s))
            if ticks % REFRESH_EVERY_TICKS == 0:
                await self._forecast()
                await self._driver.accounting.costs.learn()
                self._driver.accounting.refresh_waiting()
                self._driver.give_up_clients()
                self._leaving_hosts.follow()
                self._host_links.follow()
                self._elastic_hosts.follow()
                self._driver.accounting.audit.flush()
                self._admission.confirm(tokens_in_use(self._driver))
                disconnect_ended_tokens(self._driver, self._authentication)
                close_left_sessions(self._driver, self._rules)
                self._driver.blobs.piece_uploads.drop_old()
                self._collect_when_idle()

    @property
    def _now_s(self) -> float:
        return self._driver.core.clock.now_s()

    def _collect_when_idle(self) -> None:
        queue = self._driver.core.queue
        middle_collections = gc.get_count()[2]
        if middle_collections and not queue.contending and not queue.running:
            gc.collect()

    async def _forecast(self) -> None:
        """Predict the starts of pending jobs, beside the event loop; only while few enough are pending."""
        core = self._driver.core
        if not 0 < core.queue.contending <= FORECAST_JOBS_MAX:
            return
        snapshot = core.queue.decision(core.clock.now_s())
        starts = await asyncio.to_thread(expected_starts, snapshot)
        self._driver.accounting.starts.estimated(starts, snapshot.now_s)

    def save(self, learnt: bool = True, life: bool = True) -> None:
        """Queue what changed for the database. ``learnt``: what forecasts are made from, too. ``life``: that
        this pool serves."""
        self._driver.accounting.save_changed()
        if life:
            self._store.put(self._life.row(self._now_s))
        if learnt:
            self._driver.accounting.save_learnt()
        fleet = self._driver.fleet
        measured, fleet.new_measurements = fleet.new_measurements, []
        for kind, values in measured:
            self._store.write(write_measurement(*kind, msgspec.msgpack.encode(values.curves)))


@dataclass(slots=True)
class PoolContext:
    """``stop`` ends the server, cleanly."""

    driver: Driver
    authentication: Authentication
    blobs: BlobStore
    store: Store
    metrics: Metrics
    heartbeat: Heartbeat
    notebooks: NotebookService
    started_at: float
    stop: Callable[[], None]
    admission: Admission
    life: LifeWriter
    detached: DetachedRules = field(default_factory=DetachedRules)
    limits: UserLimits = field(default_factory=UserLimits)
    ready: bool = False
