"""Tenants in vLLM's engine core on the simulated executor: who gets the steps, the memory and the prefix cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from driving import Driver, tokens
from engines import Engine, Shape
from histories import POLICIES
from invariants import check_ended

from stream2llm_pod.engine.protocol import Op, OpKind
from stream2llm_pod.engine.tenancy import TenantShare

pytestmark = pytest.mark.simulated
HEAVY, LIGHT = TenantShare("heavy", 3.0), TenantShare("light", 1.0)


@pytest.fixture
def engine(simulated_engines: Callable[[bool], Engine]) -> Engine:
    return simulated_engines(False)


def prefilled(driver: Driver, share: TenantShare) -> int:
    """Prompt tokens computed of the tenant's requests that have not ended."""
    return sum(
        min(request.num_computed_tokens, request.num_prompt_tokens)
        for req_id, request in driver.scheduler.requests.items()
        if driver.scheduler.tenants.of(req_id) == share.tenant
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_prefill_is_shared_by_weight_under_every_policy(engine: Engine, policy: str) -> None:
    engine.renew(Shape(policy=policy, budget_tokens=64, slots=64))
    driver = Driver(engine)
    # The heavy one has come later. More than 40 steps of 64 for either.
    for share, seed in ((LIGHT, 100), (HEAVY, 200)):
        for number in range(5):
            driver.open(f"{share.tenant}-{number}", tokens(seed + number, 640), share=share)
    for steps in range(1, 41):
        driver.step()
        heavy, light = prefilled(driver, HEAVY), prefilled(driver, LIGHT)
        assert heavy + light == 64 * steps
        assert abs(heavy / 3.0 - light) <= 64 / 3.0 + 64
    for number in range(5):
        driver.finish(f"heavy-{number}")
        driver.finish(f"light-{number}")
    driver.run()
    assert len(driver.finished) == 10
    check_ended(engine)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lone_tenant_gets_every_step(engine: Engine, policy: str) -> None:
    engine.renew(Shape(policy=policy, budget_tokens=64))
    driver = Driver(engine)
    driver.add("a", tokens(1, 640), share=TenantShare("light", 0.001))
    driver.step(5)
    assert prefilled(driver, LIGHT) == 320
    driver.run()


def test_a_newcomer_does_not_wait_for_the_flood(engine: Engine) -> None:
    """Twenty prompts of one tenant wait; another's single one is next, whatever the policy's rank says."""
    engine.renew(Shape(policy="fcfs", budget_tokens=64))
    driver = Driver(engine)
    for number in range(20):
        driver.add(f"flood-{number}", tokens(100 + number, 256), share=LIGHT)
    driver.step(10)
    driver.add("late", tokens(1, 60), max_tokens=1, share=TenantShare("other"))
    driver.step()
    assert driver.finished == {**driver.finished, "late": "length"}
    driver.run()
    assert len(driver.finished) == 21


def test_those_who_decode_go_on_while_another_tenant_has_its_turn(engine: Engine) -> None:
    engine.renew(Shape(policy="fcfs", budget_tokens=64))
    driver = Driver(engine)
    driver.add("decoding", tokens(1, 40), max_tokens=30, share=LIGHT)
    driver.step(2)
    before = len(driver.outputs["decoding"])
    driver.add("long", tokens(2, 640), share=HEAVY)
    driver.step(5)
    assert len(driver.outputs["decoding"]) == before + 5
    assert prefilled(driver, HEAVY) == 5 * 63
    driver.run()


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "default"])
def test_the_tenant_over_its_share_of_memory_gives_way(engine: Engine, policy: str) -> None:
    """Four streams of the flood hold 40 of 44 blocks; the other tenant's prompt takes from them, and not from its own
    tenant's stream that waits for its producer."""
    engine.renew(Shape(policy=policy, blocks=44, budget_tokens=1024, prefix_caching=False))
    driver = Driver(engine)
    other = TenantShare("other")
    driver.open("other-open", tokens(1, 96), share=other)
    for number in range(4):
        driver.open(f"flood-{number}", tokens(100 + number, 320), share=TenantShare("flood"))
    driver.run()
    driver.add("other-whole", tokens(2, 320), max_tokens=2, share=other)
    driver.step()
    held = {req_id: len(driver.scheduler.upstream.blocks(req_id)) for req_id in driver.scheduler.requests}
    assert held["other-open"] == 3
    assert held["other-whole"] > 0
    assert sum(held[f"flood-{number}"] == 0 for number in range(4)) == 1
    for name in ("other-open", *(f"flood-{number}" for number in range(4))):
        driver.finish(name)
    driver.run()
    assert set(driver.finished.values()) == {"length"}
    check_ended(engine)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "default"])
def test_the_flood_does_not_take_what_a_tenant_within_its_share_holds(engine: Engine, policy: str) -> None:
    engine.renew(Shape(policy=policy, blocks=44, budget_tokens=1024, prefix_caching=False))
    driver = Driver(engine)
    flood = TenantShare("flood")
    driver.open("quiet", tokens(1, 320), share=TenantShare("quiet"))
    driver.run()
    for number in range(12):
        driver.add(f"flood-{number}", tokens(100 + number, 320), max_tokens=4, share=flood)
    driver.run()
    assert len(driver.finished) == 12
    driver.finish("quiet")
    driver.run()
    assert driver.reports["quiet"]["preemptions"] == 0
    check_ended(engine)


def test_a_prompt_that_needs_all_memory_is_not_kept_waiting_by_another_tenants_producers(engine: Engine) -> None:
    engine.renew(Shape(blocks=20, budget_tokens=1024, prefix_caching=False))
    driver = Driver(engine)
    for name, seed in (("quiet-1", 1), ("quiet-2", 2)):
        driver.open(name, tokens(seed, 64), share=TenantShare("quiet"))
    driver.run()
    driver.add("big", tokens(3, 620), max_tokens=2, share=TenantShare("big"))
    driver.run()
    assert driver.finished["big"] == "length"
    driver.abort("quiet-1", "quiet-2")
    driver.run()


# ---------------------------------------------------------------- prefix caches
def computed_for(driver: Driver, req_id: str, prompt: list[int], **fields: object) -> int:
    """Prompt tokens that the engine computes for one stream from its open to its first token."""
    before = driver.scheduler.counters.prefill_tokens
    driver.send(req_id, prompt, Op(OpKind.OPEN).to_extra_args(), max_tokens=1, **fields)  # type: ignore[arg-type]
    driver.run()
    driver.finish(req_id)
    driver.run()
    assert driver.finished[req_id] == "length"
    return int(driver.scheduler.counters.prefill_tokens - before)


def test_the_salt_keeps_the_prefix_caches_of_tenants_apart(engine: Engine) -> None:
    engine.renew(Shape(budget_tokens=256))
    driver = Driver(engine)
    prompt = tokens(7, 200)
    acme, rival = TenantShare("acme"), TenantShare("rival")
    first = computed_for(driver, "a1", prompt, share=acme, cache_salt="acme")
    assert first > 200
    again = computed_for(driver, "a2", prompt, share=acme, cache_salt="acme")
    other = computed_for(driver, "b1", prompt, share=rival, cache_salt="rival")
    assert again <= first - 192, "its own blocks are found again: 6 of 32 tokens"
    assert other == first
    check_ended(engine)


def test_without_a_salt_tenants_share_the_prefix_cache(engine: Engine) -> None:
    """As with --share-cache."""
    engine.renew(Shape(budget_tokens=256))
    driver = Driver(engine)
    prompt = tokens(8, 200)
    first = computed_for(driver, "a1", prompt, share=TenantShare("acme"))
    assert computed_for(driver, "b1", prompt, share=TenantShare("rival")) <= first - 192


def test_blocks_of_two_tenants_with_the_same_context_are_never_shared_while_in_use(engine: Engine) -> None:
    engine.renew(Shape(budget_tokens=256))
    driver = Driver(engine)
    prompt = tokens(9, 200)
    for name in ("acme", "rival", "acme-2"):
        salt = name.split("-")[0]
        driver.open(name, prompt, share=TenantShare(salt), cache_salt=salt)
        driver.run()
    blocks = {
        name: {block.block_id for block in driver.scheduler.upstream.blocks(name)}
        for name in ("acme", "rival", "acme-2")
    }
    assert not blocks["acme"] & blocks["rival"]
    assert len(blocks["acme"] & blocks["acme-2"]) == 6
    driver.abort("acme", "rival", "acme-2")
    driver.run()
