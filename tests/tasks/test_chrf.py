"""chrF of many sentences equals sacreBLEU's, sentence by sentence."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from grpo_ablate.spec.schema import TranslationTask
from grpo_ablate.tasks.registry import make_task
from grpo_ablate.tasks.translation.chrf import LONGEST_REFERENCE, sentence_chrf

METRIC = CHRF()


def by_sacrebleu(hypotheses, references):
    pairs = zip(hypotheses, references, strict=True)
    return np.array([METRIC.sentence_score(said, [asked]).score / 100 for said, asked in pairs])


letters = st.text(alphabet="abé ñ", max_size=50)


@given(st.lists(st.tuples(letters, letters), min_size=1, max_size=20))
@settings(deadline=None, max_examples=150)
def test_chrf_of_any_sentences_is_sacrebleus(pairs):
    said, asked = zip(*pairs, strict=True)
    np.testing.assert_allclose(sentence_chrf(said, asked), by_sacrebleu(said, asked), rtol=0, atol=1e-14)


def test_chrf_does_not_depend_on_the_other_sentences_or_their_order():
    rng = random.Random(1)
    said = ["".join(rng.choices("abc ", k=rng.randrange(300))) for _ in range(1500)]
    asked = ["".join(rng.choices("abc", k=rng.randrange(LONGEST_REFERENCE + 1))) for _ in range(1500)]
    scores = sentence_chrf(said, asked)
    np.testing.assert_allclose(scores, by_sacrebleu(said, asked), rtol=0, atol=1e-14)
    order = rng.sample(range(1500), 1500)
    assert np.array_equal(sentence_chrf([said[i] for i in order], [asked[i] for i in order]), scores[order])
    assert sentence_chrf(said[:1], asked[:1])[0] == scores[0]


def test_a_sentence_is_worth_one_against_itself_and_a_long_reference_is_refused():
    text = "ab" * 31 + "c"
    assert sentence_chrf([text, "ñ", "la pomme"], [text, "ñ", "la pomme"]).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="more than 63"):
        sentence_chrf(["a"], ["a" * 64])


def test_the_reward_of_any_response_is_sacrebleus_score_of_its_text():
    task = make_task(TranslationTask(name="translation", train_prompts=64, held_out=16))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(task.vocabulary), (2, 40, 5, 12), generator=generator)
    token = torch.arange(12) < torch.randint(1, 13, (2, 40, 5, 1), generator=generator)
    prompts = torch.randint(80, (2, 40), generator=generator)
    scores = task.score(prompts, tokens, token)
    said, asked = [], []
    for member, prompt, sample in np.ndindex(2, 40, 5):
        found = task.exhibit(
            int(prompts[member, prompt]), tokens[member, prompt, sample][token[member, prompt, sample]].tolist()
        )
        said.append(found["response"].removesuffix(" <end>").removesuffix("<end>"))
        asked.append(found["reference"])
    expected = by_sacrebleu(said, asked).reshape(2, 40, 5)
    np.testing.assert_allclose(scores.reward.numpy(), expected, rtol=0, atol=1e-14)
    assert torch.equal(scores.components["chrf"], scores.reward)
