"""A tiny Llama whose greedy output depends on every prompt token, so that equality of tokens means something.

With the usual small random weights the output depends on the last token alone; these are large. Two variants: token ids
only (words `<0>` to `<511>`), and text with a byte-level BPE and a chat template.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

VERSION = 2
VOCABULARY = 512
# Standard deviations found by trying: 24 of 25 changes of one prompt token alter the greedy output.
WEIGHT_STD = {
    "q_proj": 0.2,
    "k_proj": 0.2,
    "v_proj": 0.15,
    "o_proj": 0.15,
    "gate_proj": 0.12,
    "up_proj": 0.12,
    "down_proj": 0.12,
    "lm_head": 0.5,
    "embed_tokens": 1.0,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def cached(name: str, build_into: Callable[[Path], None]) -> Path:
    """The model's folder in the user's cache, built the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "stream2llm" / "models" / f"{name}-{VERSION}"
    if not (folder / "config.json").exists():
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
        build_into(scratch)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.rename(folder)
        except OSError:
            # Another process was faster; its model is the same.
            import shutil

            shutil.rmtree(scratch)
    return folder


def build(folder: Path) -> None:
    """Token ids only: word `<i>` is token i."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(VOCABULARY)}, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<0>", eos_token="<1>", pad_token="<2>"
    ).save_pretrained(folder)
    _save_weights(folder, VOCABULARY)


def build_text(folder: Path) -> None:
    """Text: a byte-level BPE trained on this file and its neighbours, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    root = Path(__file__).parents[2]
    corpus = [path.read_text() for path in sorted((root / "docs").glob("*.md")) + sorted(root.glob("tests/*/*.py"))]
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|eos|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    _save_weights(folder, VOCABULARY)


def _save_weights(folder: Path, vocabulary: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float()
    for name, parameter in model.named_parameters():
        for kind, std in WEIGHT_STD.items():
            if kind in name:
                torch.nn.init.normal_(parameter, 0, std)
    model.save_pretrained(folder)
