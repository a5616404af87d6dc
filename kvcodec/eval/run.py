"""The evaluation: keys and values through encode and decode, tokens scored with what came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from transformers.cache_utils import Cache, DynamicCache

from kvcodec.bits import int_view
from kvcodec.engines.transformers import KVCodecCache, PagedLayer
from kvcodec.errors import InvalidInputError, UnsupportedSpecError
from kvcodec.eval.decoded import DecodedCache
from kvcodec.eval.model import LoadedModel
from kvcodec.eval.passages import Cut, Passage, cut_passages
from kvcodec.eval.replay import States, forward, record, replay
from kvcodec.eval.report import NoiseFloor, Report, Row
from kvcodec.eval.score import F64, compare, concat_scores
from kvcodec.eval.statistics import mean_stderr, perplexity, perplexity_difference, quantile
from kvcodec.eval.tally import Tally, now
from kvcodec.eval.text import Text
from kvcodec.plan import Plan

SEED = 0  # nothing here draws; a codec that does would draw the same in every run


def evaluate(
    loaded: LoadedModel,
    text: Text,
    plans: Mapping[str, Plan],
    cut: Cut,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Score a text through the cache of every plan; docs/evaluation.md has both modes.

    Args:
        plans: by the label their row gets.
        advance: told how many of how many runs of a passage are done.

    Raises:
        InvalidInputError: the text does not fill a passage, or passages exceed the model's context.
        UnsupportedSpecError: a plan cannot serve the model; raised before any scoring.
    """
    torch.manual_seed(SEED)
    if loaded.context is not None and cut.window > loaded.context:
        raise InvalidInputError(
            f"window {cut.window} is over the {loaded.context} tokens that {loaded.name} takes"
        )
    passages = cut_passages(loaded.tokenize(text.content), loaded.bos, cut)
    with torch.inference_mode():
        _check_plans(loaded, plans, cut, passages[0])
        total = 1 + len(passages) * (1 + len(plans))
        advance(0, total)
        states, expected = _baseline(loaded, passages[0])
        noise = compare(expected, _baseline(loaded, passages[0])[1], _targets(loaded, passages[0]))
        baseline, tallies, done = [], {label: Tally() for label in plans}, 1
        for passage in passages:
            advance(done, total)
            states, expected = _baseline(loaded, passage)
            targets = _targets(loaded, passage)
            baseline.append(compare(expected, expected, targets))
            for label, plan in plans.items():
                advance(done := done + 1, total)
                cache = _cache(loaded, plan, cut, states, tallies[label])
                logits = forward(loaded.model, passage.fed, cache)
                tallies[label].scores.append(compare(expected, logits, targets))
            done += 1
        advance(total, total)
    nll = concat_scores(baseline).nll
    return Report(
        model=loaded.name,
        revision=loaded.revision,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        device=str(loaded.model.device),
        text=text,
        cut=cut,
        bos=loaded.bos is not None,
        passages=len(passages),
        tokens=nll.size,
        ppl=perplexity(nll),
        noise=NoiseFloor(
            tokens=noise.nll.size,
            kl_mean=float(noise.kl.mean()),
            max_nll_difference=float(abs(noise.nll - baseline[0].nll).max()),
        ),
        seed=SEED,
        rows=tuple(_row(label, plans[label], tally, nll) for label, tally in tallies.items()),
    )


def _check_plans(loaded: LoadedModel, plans: Mapping[str, Plan], cut: Cut, first: Passage) -> None:
    """Cache one token: its states have the shapes that decide what a codec supports."""
    states = record(loaded.model, (*first.prefix, *first.fed)[:1])
    for label, plan in plans.items():
        cache = KVCodecCache(loaded.model.config, plan, block_size=cut.block_size)
        if not any(isinstance(cache.layers[layer], PagedLayer) for layer in states):
            raise UnsupportedSpecError(
                f"{loaded.name} has no full-attention layer: nothing would be compressed"
            )
        try:
            replay(states, cache)
        except UnsupportedSpecError as error:
            raise UnsupportedSpecError(f"codec {label!r} on {loaded.name}: {error}") from error


def _targets(loaded: LoadedModel, passage: Passage) -> torch.Tensor:
    return torch.tensor(passage.targets, device=loaded.model.device)


def _baseline(loaded: LoadedModel, passage: Passage) -> tuple[States, torch.Tensor]:
    """States of the prefix, if any, and logits of the rest through an uncompressed cache."""
    states = record(loaded.model, passage.prefix) if passage.prefix else {}
    cache = replay(states, DynamicCache(config=loaded.model.config))
    return states, forward(loaded.model, passage.fed, cache)


def _cache(loaded: LoadedModel, plan: Plan, cut: Cut, states: States, tally: Tally) -> Cache:
    """What the plan's run of a passage begins with; it counts into the tally, now or then.

    A compressed cache that holds the prefix, of which one fetch is timed and compared; without a
    prefix, an empty cache that replaces what it is given.
    """
    if cut.whole:
        return DecodedCache(loaded.model.config, plan, cut.block_size, tally)
    cache = KVCodecCache(loaded.model.config, plan, block_size=cut.block_size)
    begun = now(loaded.model.device)
    replay(states, cache)
    tally.encode_seconds += now(loaded.model.device) - begun
    paged = {i: layer for i, layer in enumerate(cache.layers) if isinstance(layer, PagedLayer)}
    begun = now(loaded.model.device)
    fetched = {index: layer.fetch() for index, layer in paged.items()}
    tally.decode_seconds += now(loaded.model.device) - begun
    for index, planes in fetched.items():
        for plane, kept in zip(planes, states[index], strict=True):
            tally.bit_equal &= torch.equal(int_view(plane), int_view(kept))
    stats = cache.stats()
    tally.numel += stats.live_numel
    tally.raw_nbytes += stats.live_raw_nbytes
    tally.encoded_nbytes += stats.live_nbytes
    return cache


def _row(label: str, plan: Plan, tally: Tally, baseline: F64) -> Row:
    scores = concat_scores(tally.scores)
    delta, stderr = perplexity_difference(scores.nll, baseline)
    return Row(
        codec=label,
        plan=str(plan),
        lossless=plan.lossless,
        bits_per_element=8 * tally.encoded_nbytes / tally.numel,
        ratio=tally.raw_nbytes / tally.encoded_nbytes,
        ppl=perplexity(scores.nll),
        delta_ppl=delta,
        delta_ppl_stderr=stderr,
        kl_mean=float(scores.kl.mean()),
        kl_stderr=mean_stderr(scores.kl),
        kl_p99=quantile(scores.kl, 0.99),
        top1=float(scores.same_top.mean()),
        tokens=scores.nll.size,
        encode_gbps=tally.raw_nbytes / tally.encode_seconds / 1e9,
        decode_gbps=tally.raw_nbytes / tally.decode_seconds / 1e9,
        bit_equal=tally.bit_equal,
    )
