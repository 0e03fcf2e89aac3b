"""The shapes of models by name, for measuring without a checkpoint."""

from __future__ import annotations

from tiny_vllm.models.config import ModelConfig, RopeConfig

SHAPES = {
    "llama-3.2-1b": ModelConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope=RopeConfig(500000.0, "llama3", 32.0, 1.0, 4.0, 8192),
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_ids=(),
    ),
    "smollm2-135m": ModelConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope=RopeConfig(100000.0),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_ids=(),
    ),
}
