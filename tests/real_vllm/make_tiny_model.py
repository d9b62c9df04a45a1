#!/usr/bin/env python3
"""Write a tiny random-weight chat model (Hugging Face folder) that real vLLM serves on a CPU, without any network.

    python make_tiny_model.py OUT_DIR [--seed 0]

Needs torch, transformers, tokenizers and safetensors, all of which the vLLM venv has.

* Tokenizer: byte-level BPE trained on text that every CPython carries, so any UTF-8 string round-trips.
* Weights: gaussian with a much larger spread than a training init. The usual 0.02 makes a greedy decode repeat one
  token whatever the prompt; here each next token depends on the whole prefix, so comparing greedy outputs notices a
  KV cache that is missing, shifted or from another request.
"""

import argparse
import json
import pathlib
import pydoc_data.topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

VOCAB = 4096
MAX_LEN = 32768  # tokens
QK_GAIN = 2.0  # spread of the q and k projections
ATTENTION_GAIN = 4.0  # how strongly the attention output feeds the residual

EOT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools:\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif -%}"
    "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for p in m['content'] %}{{ p['text'] if p['type'] == 'text' else '' }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[EOT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    topics = pydoc_data.topics.topics
    bpe.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    if bpe.get_vocab_size() != VOCAB:
        raise SystemExit(f"corpus too small: {bpe.get_vocab_size()} tokens, wanted {VOCAB}")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=IM_END, pad_token=EOT)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = MAX_LEN
    return tokenizer


def build_model(seed: int, tokenizer: PreTrainedTokenizerFast):
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(EOT),
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue  # norm gains stay 1
            if "embed_tokens" in name or "lm_head" in name:
                weight.normal_(0.0, 1.0)
            else:
                gain = QK_GAIN if "q_proj" in name or "k_proj" in name else 1.0
                weight.normal_(0.0, gain * weight.shape[1] ** -0.5)
            if "o_proj" in name:
                weight.mul_(ATTENTION_GAIN)
        # The three special tokens never win: generation stops only at max_tokens or a stop string.
        model.lm_head.weight[:3].zero_()
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(args.out)
    model = build_model(args.seed, tokenizer)
    model.save_pretrained(args.out, safe_serialization=True)
    ends = {"eos_token_id": model.config.eos_token_id, "pad_token_id": model.config.pad_token_id}
    (args.out / "generation_config.json").write_text(json.dumps(ends))
    for text in ["Hello, world", "naïve 你好 🙂 \t tabs"]:
        if tokenizer.decode(tokenizer.encode(text)) != text:
            raise SystemExit(f"the tokenizer does not round-trip {text!r}")
    print(f"{args.out}: {sum(w.numel() for w in model.parameters()) / 1e6:.2f}M parameters")


if __name__ == "__main__":
    main()
