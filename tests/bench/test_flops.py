"""The counted operations are those of the products: as torch counts them, and as a loop over tokens sums them."""

import pytest
import torch
from small_language import POLICY
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_ablate.bench.flops import forward, token_cost
from grpo_ablate.spec.schema import StackedPolicy


@pytest.mark.parametrize("changes", [{}, {"hidden": 64, "heads": 4, "kv_heads": 4, "layers": 3}])
def test_the_cost_of_a_token_is_what_torch_counts_in_transformers_llama(changes):
    policy, vocabulary, tokens = StackedPolicy(**POLICY | changes), 31, 7
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=policy.hidden,
            intermediate_size=policy.intermediate,
            num_hidden_layers=policy.layers,
            num_attention_heads=policy.heads,
            num_key_value_heads=policy.kv_heads,
            head_dim=policy.head_size,
            attn_implementation="eager",
        )
    )
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.int64))
    found = {str(kind): count for kind, count in counter.get_flop_counts()["Global"].items()}
    cost = token_cost(policy, vocabulary)
    assert found["aten.mm"] == tokens * (cost.layers + cost.head)
    assert found["aten.bmm"] == tokens * tokens * cost.per_key  # eager attention multiplies the whole square


def test_a_round_is_the_sum_over_its_tokens():
    cost = token_cost(StackedPolicy(**POLICY), 49)
    prompts, responses = torch.tensor([[3, 5]]), torch.tensor([[[1, 4], [2, 2]]])
    expected = 0
    for prompt, group in zip(prompts[0].tolist(), responses[0].tolist(), strict=True):
        expected += cost.head  # the first token of every response has the same law
        expected += sum(cost.layers + cost.per_key * (position + 1) for position in range(prompt))
        for length in group:
            for fed in range(length - 1):
                expected += cost.layers + cost.head + cost.per_key * (prompt + fed + 1)
    assert forward(cost, prompts, responses) == expected
    assert forward(cost, prompts[torch.tensor([[False, False]])], responses[torch.tensor([[False, False]])]) == 0
