"""How a text is cut: who is scored, who is fed, what stands in front."""

import pytest

from kvcodec.errors import InvalidInputError
from kvcodec.eval.passages import Cut, cut_passages

BOS = -1
CUTS = [Cut(32, 16, 16), Cut(64, 16, 16), Cut(17, 16, 8), Cut(40, 32, 16), Cut(33, 1, 1)]
CUTS += [Cut(32, 0, 16), Cut(33, 0, 16)]
IDS = range(1000)  # a token's id is its place in the text


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("bos", [None, BOS])
@pytest.mark.parametrize("length", [1000, 999, 941])
def test_every_token_after_the_first_prefix_is_scored_exactly_once(cut, bos, length):
    passages = cut_passages(IDS[:length], bos, cut)
    scored = [target for passage in passages for target in passage.targets]
    # The first prefix holds a BOS or one more token of the text; the next token is fed, unscored.
    first = cut.prefix + (bos is None)
    assert scored == list(range(first, length))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("bos", [None, BOS])
def test_a_passage_is_one_run_of_text_in_which_each_token_predicts_the_next(cut, bos):
    for passage in cut_passages(IDS, bos, cut):
        run = (*passage.prefix, *passage.fed)[bos is not None :]
        assert run == tuple(range(run[0], run[0] + len(run)))
        assert passage.targets == (*passage.fed[1:], run[-1] + 1)


@pytest.mark.parametrize("cut", CUTS)
def test_a_passage_fills_its_window_with_exactly_one_bos_in_front(cut):
    passages = cut_passages(IDS, BOS, cut)
    for passage in passages:
        assert len(passage.prefix) == cut.prefix
        assert (*passage.prefix, *passage.fed).count(BOS) == 1
        assert (*passage.prefix, *passage.fed)[0] == BOS
    for passage in passages[:-1]:
        assert len(passage.prefix) + len(passage.fed) == cut.window


def test_without_a_bos_the_window_holds_text_only():
    assert cut_passages(IDS, None, Cut(32, 16, 16))[0].prefix == tuple(range(16))


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 100])
def test_at_most_the_wanted_tokens_are_scored(tokens):
    passages = cut_passages(IDS, BOS, Cut(32, 16, 16, tokens))
    assert sum(len(passage.targets) for passage in passages) == tokens


def test_a_limit_past_the_end_of_the_text_scores_all_of_it():
    cut = Cut(32, 16, 16, tokens=10**9)
    assert cut_passages(IDS, BOS, cut) == cut_passages(IDS, BOS, Cut(32, 16, 16))


@pytest.mark.parametrize(("bos", "needed"), [(BOS, 32), (None, 33)])
def test_a_text_shorter_than_a_window_is_refused_with_its_length(bos, needed):
    cut = Cut(32, 16, 16)
    assert len(cut_passages(IDS[:needed], bos, cut)) == 1
    with pytest.raises(InvalidInputError, match=f"{needed - 1} tokens, .* needs {needed}"):
        cut_passages(IDS[: needed - 1], bos, cut)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"prefix": 500}, "prefix 500 is not a multiple of the block size 64"),
        ({"prefix": -64}, "prefix -64 is not a multiple"),
        ({"block_size": 0}, "block size 0"),
        ({"window": 512}, "prefix 512 is not below window 512"),
        ({"window": 100}, "prefix 512 is not below window 100"),
        ({"tokens": 0}, "tokens is 0, wanted at least 1"),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused(cut, message):
    with pytest.raises(InvalidInputError, match=message):
        Cut(**cut)
