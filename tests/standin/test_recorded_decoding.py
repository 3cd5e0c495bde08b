"""Decode loops of a language model whose kernels are recorded, in cells of real pools of stand-ins: each
launch takes the device so long that one launch in place of many is always faster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from real_pool import PoolUnderTest, kill_worker, wait_for
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from djinn_lab.client.session import Session
from djinn_lab.errors import PoolError

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:`past_key_values`:FutureWarning")]
MIB = 2**20
MEMORY = 64 * MIB
TOLERANCE = 1e-4
PROMPT = torch.arange(8)[None] * 7
SETTLED = 40
"""Tokens after which a recording was made, checked, measured and kept."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    card = {"devices": 1, "memory_bytes": 1024 * MIB, "context_bytes": 16 * MIB, "launch_s": 1e-4}
    options = {"accept_weak_isolation": True, "region_compiler": "cuda-graphs"}
    directory = tmp_path_factory.mktemp("recording")
    with PoolUnderTest(directory, "standin:1", MEMORY, card, **options) as opened:
        yield opened


def language_model(attention: str = "sdpa") -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


class Decoding:
    """A loop that a user writes: it feeds each token back, with a cache that holds all before."""

    def __init__(self, model: LlamaForCausalLM, cache: object, prompt: torch.Tensor = PROMPT) -> None:
        self._model = model
        self._cache = cache
        self._next = prompt
        self.tokens: list[int] = []

    def go_on(self, tokens: int) -> None:
        with torch.no_grad():
            for _ in range(tokens):
                made = self._model(self._next, past_key_values=self._cache, use_cache=True)
                self._next = made.logits[:, -1:].argmax(-1)
                self.tokens.append(int(self._next))


def static(model: LlamaForCausalLM, tokens: int = 256) -> StaticCache:
    return StaticCache(config=model.config, max_cache_len=tokens)


def decoded(tokens: int, prompt: torch.Tensor = PROMPT) -> list[int]:
    """Return what plain torch makes."""
    model = language_model()
    plain = Decoding(model, static(model), prompt)
    plain.go_on(tokens)
    return plain.tokens


def run(session: Session, decoding: Decoding, tokens: int, name: str = "decode") -> str:
    """Decode in one cell, and return what its report says of the last part of it."""
    with session.capture(name, tolerance=TOLERANCE) as cell:
        decoding.go_on(tokens - 1)
    with session.capture(name, tolerance=TOLERANCE) as cell:
        decoding.go_on(1)
    return cell.report.compiled


def is_kept(said: str) -> bool:
    return " recorded as CUDA graphs: " in said and "largest difference 0.0e+00" in said


def test_generate_with_a_static_cache_runs_recorded_and_has_the_tokens_of_plain_torch(
    pool: PoolUnderTest,
) -> None:
    def generate(model: LlamaForCausalLM) -> torch.Tensor:
        with torch.no_grad():
            made: torch.Tensor = model.generate(
                PROMPT,
                max_new_tokens=SETTLED,
                do_sample=False,
                pad_token_id=0,
                cache_implementation="static",
                disable_compile=True,
            )
        return made

    model = language_model()
    expected = generate(language_model())
    with pool.session() as session:
        for _ in range(2):
            with session.capture("generate", tolerance=TOLERANCE) as cell:
                found = generate(model)
            assert torch.equal(session.fetch(found), expected)
        assert is_kept(cell.report.compiled)
        assert "ops of other sizes in each run run op by op" in cell.report.compiled


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_written_loop_over_a_static_cache_is_one_region(pool: PoolUnderTest, attention: str) -> None:
    model = language_model(attention)
    decoding = Decoding(model, static(model))
    with pool.session() as session:
        said = run(session, decoding, SETTLED + 20)
    assert decoding.tokens == decoded(SETTLED + 20)
    assert is_kept(said)
    assert "in 1 region" in said
    assert "other sizes" not in said


def test_cache_that_grows_leaves_more_op_by_op_and_the_report_says_what_helps(pool: PoolUnderTest) -> None:
    model = language_model()
    decoding = Decoding(model, DynamicCache(config=model.config))
    with pool.session() as session:
        said = run(session, decoding, SETTLED + 20)
    assert decoding.tokens == decoded(SETTLED + 20)
    assert is_kept(said)
    assert 'cache_implementation="static"' in said


def test_tokens_stay_right_whatever_happens_to_the_session_between_them(pool: PoolUnderTest) -> None:
    model = language_model()
    first, second = (Decoding(model, static(model), prompt) for prompt in (PROMPT, PROMPT + 5))
    with pool.session() as session:
        with session.capture():
            held = torch.ones(4 * MIB) * 3
        assert is_kept(run(session, first, SETTLED))
        run(session, second, SETTLED)  # another cache
        for disturb in (parked, lost, preempted):
            disturb(pool, session, first)
            said = [run(session, decoding, 10) for decoding in (first, second)]
            assert disturb is not parked or all(map(is_kept, said))
        assert session.fetch(held).mean() == 3
    assert first.tokens == decoded(len(first.tokens))
    assert second.tokens == decoded(len(second.tokens), PROMPT + 5)


def parked(pool: PoolUnderTest, session: Session, decoding: Decoding) -> None:
    """Another user's values take the device's memory."""
    with pool.session("bob") as bob:
        with bob.capture():
            found = torch.ones((MEMORY - 8 * MIB) // 4).mul_(2).mean()
        assert bob.fetch(found) == 2
        [row] = [row for row in pool.rest.memory().sessions if row.session == session.welcome.session]
        assert row.tier == "host"


def lost(pool: PoolUnderTest, session: Session, decoding: Decoding) -> None:
    kill_worker(pool, "standin:0")


def preempted(pool: PoolUnderTest, session: Session, decoding: Decoding) -> None:
    """A cell of another user is more urgent than the loop that runs."""

    def run_beside(carol: Session) -> None:
        wait_for(lambda: any(job.cell == "long" and job.ops_done > 0 for job in pool.rest.jobs(limit=5)))
        with carol.capture(priority="CRITICAL"):
            urgent = torch.ones(10) + 1
        assert carol.fetch(urgent).sum() == 20

    with pool.session("carol") as carol, ThreadPoolExecutor(1) as beside:
        ran = beside.submit(run_beside, carol)
        run(session, decoding, 40, "long")
        ran.result()


def test_token_that_does_not_fit_the_cache_is_named_by_its_op(pool: PoolUnderTest) -> None:
    model = language_model()
    tokens = SETTLED + 20
    decoding = Decoding(model, static(model, PROMPT.size(1) + tokens))
    with pool.session() as session:
        assert is_kept(run(session, decoding, tokens))
        with pytest.raises((torch.AcceleratorError, PoolError), match=r"index_copy_"):
            run(session, decoding, 2)
