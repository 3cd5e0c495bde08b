"""IA3 and prompt tuning of peft on tiny models."""

import torch
from peft import IA3Config, PromptTuningConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

torch.manual_seed(1)
config = BertConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=50
)
classifier = get_peft_model(
    BertForSequenceClassification(config),
    IA3Config(task_type=TaskType.SEQ_CLS, target_modules=["key", "value"], feedforward_modules=[]),
)
tokens = torch.randint(0, 50, (3, 8))
loss = classifier(input_ids=tokens, labels=torch.tensor([0, 1, 0])).loss
loss.backward()
print(f"{loss.item():.6f}")
base = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=50, n_positions=32))
prompted = get_peft_model(base, PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=3))
found = prompted(input_ids=tokens, labels=tokens)
found.loss.backward()
print(f"{found.loss.item():.6f}", tuple(found.logits.shape))
