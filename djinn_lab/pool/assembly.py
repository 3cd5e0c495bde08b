"""Puts a pool's parts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from djinn_lab.config.fields import BUILT_IN_ESTIMATOR
from djinn_lab.engine import PoolOpened
from djinn_lab.jobs.autoscaling import ScalingLimits
from djinn_lab.jobs.decision import DEFAULT, QueuePolicy
from djinn_lab.jobs.resources import ResourceHistory
from djinn_lab.jobs.run_times import SOURCES
from djinn_lab.jobs.start_forecasts import StartForecasts
from djinn_lab.journal import this_version
from djinn_lab.memory import POLICIES, MemoryPolicy
from djinn_lab.pool.authentication import Authentication
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.job_accounting import PAST_MAX, JobAccounting
from djinn_lab.pool.bookkeeping.overruns import OverrunDetector
from djinn_lab.pool.context import Heartbeat, PoolContext
from djinn_lab.pool.database import history
from djinn_lab.pool.database.forecasts import (
    RUN_RATIOS,
    START_WAITS,
    read_forecasts,
    read_samples,
    run_times_name,
)
from djinn_lab.pool.database.pool_lives import LifeWriter
from djinn_lab.pool.database.published import read_published
from djinn_lab.pool.database.sessions import LeftSession
from djinn_lab.pool.database.shares import read_shares
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.database.users import read_tokens, read_users
from djinn_lab.pool.devices.cost_model import CostModel
from djinn_lab.pool.devices.estimator_plugin import load_estimator
from djinn_lab.pool.devices.fleet import Fleet
from djinn_lab.pool.devices.launcher import Launcher, TakenCopy
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.execution.clock import PoolClock
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.identity.admission import Admission
from djinn_lab.pool.identity.settings import IdentitySettings, make_providers
from djinn_lab.pool.metrics.pool import Metrics
from djinn_lab.pool.notebooks.service import NOTEBOOK_RULES, NotebookRules, NotebookService
from djinn_lab.pool.sessions.detached import DetachedRules
from djinn_lab.pool.sessions.isolation import ISOLATION_RULES, IsolationRules
from djinn_lab.pool.sessions.registry import SessionRegistry
from djinn_lab.pool.sessions.returning import TakeCopies, return_sessions
from djinn_lab.pool.user_limits import UserLimits

NO_OTHER_LIMITS = UserLimits()
DETACHED_RULES = DetachedRules()
NO_PROVIDERS = IdentitySettings()


def _take_none(sessions: Sequence[LeftSession]) -> Mapping[str, TakenCopy]:
    """Nothing was parked."""
    return {}


def assemble(
    pool: str,
    token: str,
    launcher: Launcher,
    plans: Sequence[DevicePlan],
    blobs: BlobStore,
    store: Store,
    stop: Callable[[], None],
    policy: MemoryPolicy = POLICIES["default"],
    queue_policy: str | QueuePolicy = DEFAULT.name,
    notebook_rules: NotebookRules = NOTEBOOK_RULES,
    limits: UserLimits = NO_OTHER_LIMITS,
    detached: DetachedRules = DETACHED_RULES,
    isolation: IsolationRules = ISOLATION_RULES,
    identity: IdentitySettings = NO_PROVIDERS,
    take_copies: TakeCopies = _take_none,
    cost_estimator: str = BUILT_IN_ESTIMATOR,
    scaling: ScalingLimits | None = None,
) -> PoolContext:
    """Reads what the database knows, and continues or ends there what an earlier pool left, so it blocks;
    call it before serving. ``take_copies``: takes over what that pool had parked. ``scaling``: for a launcher
    whose cluster adds nodes. Raises SQLAlchemyError, and
    OptionError for an identity provider or a cost estimator that is not there."""
    clock = PoolClock()
    started_at = clock.now_s()
    last_seq = store.opened()
    users = store.submit(read_users).result()
    tokens = store.submit(read_tokens).result()
    shares = store.submit(read_shares).result()
    measurements = store.submit(history.read_measurements).result()
    authentication = Authentication(token, clock.now_s)
    for name, role, above in users:
        if name != authentication.owner:  # may have been a user of another account's pool on this database
            authentication.add(name, role, above)
    for known in tokens:
        authentication.restore(known)
    metrics = Metrics()
    fleet = Fleet(plans, measurements)
    core = JournaledEngine(pool, clock, store.journal, last_seq)
    core.handle(PoolOpened(started_at, queue_policy, shares, policy, this_version()))
    samples = store.submit(read_samples).result()
    estimator = load_estimator(cost_estimator)
    learned_of = "" if estimator is None else estimator.name
    ratios: dict[str, tuple[float, ...]] = {
        source: samples.get(run_times_name(source, learned_of), ()) for source in SOURCES
    }
    costs = CostModel(fleet, clock.now_s, ratios, estimator)
    accounting = JobAccounting(core, blobs, store, SessionRegistry(), metrics.observe_segment, costs)
    accounting.remember(store.submit(lambda connection: history.read_names(connection, PAST_MAX)).result())
    accounting.resources = ResourceHistory(store.submit(read_forecasts).result())
    accounting.starts = StartForecasts(samples.get(START_WAITS, ()))
    accounting.overruns = OverrunDetector(samples.get(RUN_RATIOS, ()))
    for one in store.submit(read_published).result():
        accounting.published.add(one)
    driver = Driver(core, launcher, fleet, blobs, accounting, isolation)
    return_sessions(driver, store, authentication, take_copies)
    providers = make_providers(identity, clock.now_s)
    admission = Admission(authentication, providers, accounting.audit, clock.now_s)
    life = LifeWriter(pool, started_at, [plan.device for plan in plans])
    heartbeat = Heartbeat(driver, store, authentication, admission, detached, life, scaling)
    notebooks = NotebookService(driver, authentication, store, notebook_rules)
    blobs.user_bytes_max = partial(upload_limit, blobs.bytes_max, limits, authentication)
    return PoolContext(
        *(driver, authentication, blobs, store, metrics, heartbeat, notebooks, started_at, stop),
        detached=detached,
        limits=limits,
        admission=admission,
        life=life,
    )


def upload_limit(bytes_max: int, limits: UserLimits, authentication: Authentication) -> int:
    """Return how many bytes of uploads one user may have now."""
    if limits.upload_bytes is not None:
        return min(limits.upload_bytes, bytes_max)
    return bytes_max if len(authentication.users()) < 2 else bytes_max // 2
