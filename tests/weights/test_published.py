"""What a learner publishes is what a worker gets, to the bit; what did not change is not sent; patches and relays change nothing."""

import threading
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.core.clock import SystemClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import WeightVersion
from slipstream.models.lora import Adapted, LoraSpec, initial_adapters, whole
from slipstream.models.quant import at_precision
from slipstream.models.weight import Quantised
from slipstream.weights.digest import weight_digest
from slipstream.weights.manifest import Chunk, Manifest, decode_manifest, encode_manifest
from slipstream.weights.transports.opening import open_source
from slipstream.weights.transports.source import Deadline, FetchFault
from tests.weights.models import TINY
from tests.weights.serving import TOKEN, Learner, learner, params, same_bits, served, served_by_flight, small_chunks, worker

SYSTEM = SystemClock()
LORA = LoraSpec(rank=2, alpha=3.0, targets=("q", "down"))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)


def lora(seed: int = 0) -> Adapted:
    fresh = initial_adapters(TINY, LORA, seed)
    return Adapted(base=params(), adapters=jax.tree.map(lambda leaf: leaf + 0.01 * (seed + 1), fresh))


def nudged(tree: Any, step: float) -> Any:
    """Every value a little larger; in bfloat16 most stay as they are."""
    return jax.tree.map(lambda leaf: (leaf * (1 + step)).astype(leaf.dtype), tree)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("transport", [served, served_by_flight])
def test_every_bit_arrives(dtype: str, transport: Any) -> None:
    odd = params(dtype=dtype)
    odd = replace(odd, final_norm=odd.final_norm.at[:3].set(jnp.array([jnp.nan, -0.0, jnp.inf], dtype)))
    with learner() as source, transport(source.chunks) as url, worker() as sink:
        manifest = source.publish(0, odd)
        assert sink.take(decode_manifest(encode_manifest(manifest)), url)
        got = sink.store.get(0)
    assert same_bits(got.params, odd)
    assert got.digest == weight_digest(odd, TINY) == source.store.get(0).digest != weight_digest(params(dtype=dtype), TINY)


def test_bfloat16_on_the_wire_is_what_a_bfloat16_sampler_makes_of_the_learners_weights() -> None:
    tree = params()
    with learner(wire_dtype="bfloat16") as source, worker() as sink:
        manifest = source.publish(0, tree)
        assert sink.take(manifest, source.url)
        assert same_bits(sink.store.get(0).params, at_precision(tree, TINY, "bf16"))
        assert same_bits(source.store.get(0).params, tree)
        assert manifest.bytes * 2 == sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_of_a_policy_with_adapters_the_base_goes_once_and_merges_to_the_same() -> None:
    first = lora()
    second = replace(first, adapters=lora(1).adapters)
    adapter_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(first.adapters))
    with learner(wire_dtype="bfloat16", patch_share=0.0) as source, worker() as sink:
        assert sink.take(source.publish(0, first), source.url)
        sent = sink.fetcher.counters["chunk_bytes"]
        before = sink.store.get(0)
        assert sink.take(source.publish(1, second), source.url)
        assert 0 < sink.fetcher.counters["chunk_bytes"] - sent <= adapter_bytes
        got = sink.store.get(1).params
        assert same_bits(got, second)
        assert same_bits(whole(got), whole(second))
        assert got.base.embed is before.params.base.embed  # one copy on the device, too
        assert same_bits(sink.store.get(0).params, first)


def test_an_unchanged_tensor_is_not_sent_again_and_a_changed_one_leaves_the_old_version_alone() -> None:
    first = params()
    second = replace(first, final_norm=first.final_norm * 2)
    with learner(patch_share=0.0) as source, worker() as sink:
        assert sink.take(source.publish(0, first), source.url)
        held = sink.store.get(0)
        sent = sink.fetcher.counters["chunk_bytes"]
        assert sink.take(source.publish(1, second), source.url)
        assert sink.fetcher.counters["chunk_bytes"] - sent == first.final_norm.nbytes
        assert sink.store.newest() == 1
        assert same_bits(held.params, first)
        assert same_bits(sink.store.get(1).params, second)


def test_patches_are_taken_where_they_pay_and_make_the_same_bits() -> None:
    first = params(dtype="bfloat16")
    second = nudged(first, 0.004)
    with learner(patch_share=5.0) as source, worker() as sink, worker() as late, worker(patches=False) as plain:
        assert sink.take(source.publish(0, first), source.url)
        manifest = source.publish(1, second)
        offered = sum(chunk.patch is not None for tensor in manifest.tensors for chunk in tensor.chunks)
        for one in (sink, late, plain):
            assert one.take(manifest, source.url)
            assert same_bits(one.store.get(1).params, second)
            assert one.events.of("weights_fault") == []
    assert sink.fetcher.counters["patches"] == offered > 0
    assert late.fetcher.counters["patches"] == plain.fetcher.counters["patches"] == 0


def test_patches_that_do_not_pay_are_not_offered() -> None:
    with learner(patch_share=0.1) as source:
        source.publish(0, params())
        manifest = source.publish(1, params(seed=1))
        assert all(chunk.patch is None for tensor in manifest.tensors for chunk in tensor.chunks)
        assert source.events.of("weights_served")[-1]["patch_bytes"] == 0


def test_a_patch_against_another_base_is_refused_and_the_whole_chunk_fetched() -> None:
    first, second = params(dtype="bfloat16"), nudged(params(dtype="bfloat16"), 0.004)
    with learner(patch_share=5.0) as source, worker() as sink:
        assert sink.take(source.publish(0, first), source.url)
        manifest = source.publish(1, second)
        _name_other_bases(source, manifest)
        named = source.chunks.version(0, 1).manifest
        assert sink.take(named, source.url)
        assert same_bits(sink.store.get(1).params, second)
    assert {row["detail"] for row in sink.events.of("weights_fault")} == {"it makes other bytes than the chunk's"}
    assert sink.fetcher.counters["patches"] == 0 < sink.fetcher.counters["fault_corrupt"]


def _name_other_bases(source: Learner, manifest: Manifest) -> None:
    """Serve the same patches as if they were from other chunks of the version before."""
    held = source.chunks.version(0, 1)
    earlier = [chunk for tensor in source.announced[0].tensors for chunk in tensor.chunks]
    patches: dict[tuple[str, str], bytes] = {}

    def other(chunk: Chunk) -> Chunk:
        if chunk.patch is None:
            return chunk
        base = next(one.hash for one in earlier if one.hash != chunk.patch.base and one.bytes == chunk.bytes)
        patches[chunk.hash, base] = held.patches[chunk.hash, chunk.patch.base]
        return replace(chunk, patch=replace(chunk.patch, base=base))

    tensors = tuple(replace(tensor, chunks=tuple(other(chunk) for chunk in tensor.chunks)) for tensor in manifest.tensors)
    source.chunks.add(replace(held, manifest=replace(manifest, tensors=tensors), patches=patches))


def test_a_chain_of_three_relays_versions_and_patches() -> None:
    first, second = params(dtype="bfloat16"), nudged(params(dtype="bfloat16"), 0.004)
    with (
        learner(patch_share=5.0) as source,
        worker() as near,
        worker() as middle,
        worker() as far,
        served(near.chunks) as near_url,
        served(middle.chunks) as middle_url,
    ):
        for version, tree in enumerate((first, second)):
            manifest = source.publish(version, tree)
            for one, url in ((near, source.url), (middle, near_url), (far, middle_url)):
                assert one.take(manifest, url)
        assert same_bits(far.store.get(1).params, second)
        assert far.fetcher.counters == near.fetcher.counters
        assert far.fetcher.counters["patches"] > 0
        asked = open_source(middle_url, TOKEN, 5.0)
        assert decode_manifest(asked.manifest(0, 1, Deadline(SYSTEM, 5.0))) == manifest
        asked.close()


@pytest.mark.parametrize("transport", [served, served_by_flight])
def test_a_version_that_has_gone_is_an_error_and_never_another(transport: Any) -> None:
    with learner() as source, worker() as sink, worker() as late, transport(source.chunks) as url:
        gone = source.publish(0, params())
        assert sink.take(gone, url)
        for version in range(1, 5):
            assert sink.take(source.publish(version, params(seed=version)), url)
        assert (sink.store.newest(), sink.store.has(0), sink.store.has(1)) == (4, False, True)
        with pytest.raises(RunFailed, match=r"version 0 are not in the store \(it holds \[1, 2, 3, 4\]\)"):
            sink.store.get(0)
        assert not late.take(gone, url)
        assert set(late.events.causes()) == {"gone"}
        with pytest.raises(RunFailed, match=r"version 0 are not in the store.*gone"):
            late.store.get(0)
        asked = open_source(url, TOKEN, 5.0)
        with pytest.raises(FetchFault, match="not here, or not any more"):
            asked.manifest(0, 0, Deadline(SYSTEM, 5.0))
        asked.close()


def test_a_new_lineage_forgets_the_versions_of_the_old_one() -> None:
    with learner() as source, worker() as sink:
        for version in (5, 6):
            assert sink.take(source.publish(version, params()), source.url)
        restarted = Learner(source.url, source.chunks)
        manifest = restarted.publish(5, params(seed=1), lineage=1)
        sink.store.announce(manifest, ["http://127.0.0.1:9"])
        assert (sink.store.newest(), sink.store.has(5), sink.store.has(6)) == (-1, False, False)
        with pytest.raises(RunFailed, match=r"version 5 are not in the store \(it holds \[\]\)"):
            sink.store.get(5)
        assert sink.take(manifest, source.url)
        assert sink.store.newest() == 5
        got = sink.store.get(5)
        assert (got.lineage, same_bits(got.params, params(seed=1))) == (1, True)
        sink.store.announce(source.announced[0], [source.url])  # an old learner's: nothing comes of it
        sink.store.settle()
        assert sink.store.newest() == 5
        restarted.store.close()


def test_versions_are_immutable() -> None:
    with learner() as source, learner() as impostor, worker() as sink:
        assert sink.take(source.publish(0, params()), source.url)
        other = impostor.publish(0, params(seed=1))
        with pytest.raises(RunFailed, match="versions are immutable"):
            sink.store.announce(other, [impostor.url])
        with pytest.raises(RunFailed, match=r"digest 0{16}, which its tensors do not have"):
            sink.store.announce(replace(other, digest="0" * 16), [impostor.url])
        with pytest.raises(ValueError, match="not newer"):
            source.publish(0, params(seed=1))
        with pytest.raises(RunFailed, match="only the learner publishes"):
            sink.store.publish(WeightVersion(lineage=0, version=1, params=params()))


def test_in_flight_workers_skip_what_was_overtaken_and_pinned_ones_take_all() -> None:
    with learner() as source, worker(newest_only=True) as hasty, worker() as pinned:
        manifests = [source.publish(version, params(seed=version)) for version in range(3)]
        for one in (hasty, pinned):
            release = threading.Event()
            one.store._thread.submit(release.wait)
            for manifest in manifests:
                one.store.announce(manifest, [source.url])
            release.set()
            one.store.settle()
        assert (hasty.store.newest(), hasty.store.has(1)) == (2, False)
        assert [row["version"] for row in hasty.events.of("weights_overtaken")] == [0, 1]
        assert [pinned.store.has(version) for version in range(3)] == [True] * 3


def test_what_cannot_be_published_is_said_to_the_learner() -> None:
    with learner() as source:
        quantised = Quantised(stored=params().layers.q.astype("int8"), scale=params().final_norm)
        with pytest.raises(ValueError, match=r"layers\.q\.scale, layers\.q\.stored cannot be published"):
            source.publish(0, replace(params(), layers=replace(params().layers, q=quantised)))
        source.store._last = None  # told once; closing would tell it again


def test_equal_values_have_one_digest_whatever_the_family_of_the_file() -> None:
    assert weight_digest(params(), TINY) == weight_digest(jax.tree.map(np.asarray, params()), TINY)
    assert weight_digest(params(), TINY) != weight_digest(params(dtype="bfloat16"), TINY)
