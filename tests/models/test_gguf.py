from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.models import gguf_writer as w
from tiny_vllm.errors import UserError
from tiny_vllm.models.gguf import read_gguf
from tiny_vllm.models.gguf_to_hf import unpermute, write_hf_folder


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("kind", w.ELEMENT_TYPES)
def test_dequantises_each_type_as_defined(rng, kind, scale):
    odd = w.random_tensor(rng, (3,), "F32")  # its 12 bytes leave the next tensor to be aligned
    tensor = w.random_tensor(rng, (5, 64), kind, scale)
    gguf = read_gguf(w.gguf_bytes({}, {"first": odd, "second": tensor}))
    result = gguf.tensors["second"].dequantise()
    assert result.dtype == np.float32 and result.shape == (5, 64)
    largest = np.abs(w.decoded(tensor)).max()
    np.testing.assert_allclose(result, w.decoded(tensor), rtol=1e-6, atol=2e-7 * largest)
    np.testing.assert_array_equal(gguf.tensors["first"].dequantise(), w.decoded(odd))


@pytest.mark.parametrize("version", [2, 3])
def test_reads_metadata_of_each_kind(version):
    values: dict[str, tuple[int, Any]] = {
        "u8": (w.U8, 200), "i8": (w.I8, -3), "u16": (w.U16, 60000), "i16": (w.I16, -300), "u32": (w.U32, 1 << 31),
        "i32": (w.I32, -(1 << 30)), "bool": (w.BOOL, True), "u64": (w.U64, 1 << 63), "i64": (w.I64, -(1 << 62)),
        "f64": (w.F64, 0.1), "text": (w.STRING, "naïve 你好"), "eps": (w.F32, 1e-5),
        "list": (w.ARRAY, (w.I32, [3, -1, 7])), "texts": (w.ARRAY, (w.STRING, ["a b", ""])),
        "none": (w.ARRAY, (w.U8, [])),
    }  # fmt: skip
    expected = {k: v[1] if k in ("list", "texts", "none") else v for k, (_, v) in values.items()}
    gguf = read_gguf(w.gguf_bytes(values, {}, version))
    assert gguf.metadata == expected  # eps exactly 1e-05, not the float32 next to it


def test_alignment_from_the_file(rng):
    tensors = {name: w.random_tensor(rng, (n,), "F32") for name, n in (("a", 3), ("b", 70), ("c", 1))}
    gguf = read_gguf(w.gguf_bytes({"general.alignment": (w.U32, 256)}, tensors))
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(gguf.tensors[name].dequantise(), w.decoded(tensor))


def small_file(rng: np.random.Generator) -> bytes:
    metadata = {"general.name": (w.STRING, "x"), "list": (w.ARRAY, (w.STRING, ["p", "q"])), "n": (w.U32, 5)}
    return w.gguf_bytes(metadata, {"t": w.random_tensor(rng, (2, 32), "Q4_1")})


def test_a_file_cut_anywhere_is_refused(rng):
    data = small_file(rng)
    read_gguf(data)
    for length in range(len(data)):
        with pytest.raises(UserError):
            read_gguf(data[:length])


def test_a_flipped_byte_never_ends_in_another_error(rng):
    data = small_file(rng)
    refused = 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= int(rng.integers(1, 256))
        try:
            for tensor in read_gguf(bytes(damaged)).tensors.values():
                tensor.dequantise()
        except UserError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("number, name", [(12, "Q4_K"), (14, "Q6_K"), (39, "MXFP4"), (77, "number 77")])
def test_other_types_are_refused_by_name(number, name):
    data = w.gguf_bytes({}, {"blk.0.attn_q.weight": ((1, 256), number, bytes(1024))})
    with pytest.raises(UserError, match=rf"blk\.0\.attn_q\.weight has the element type {name}; only F32"):
        read_gguf(data)


@pytest.mark.parametrize(
    "data, words",
    [
        (b"PK\3\4" + bytes(60), "no GGUF file"),
        (b"", "no GGUF file"),
        (w.gguf_bytes({}, {}, version=1), "version 1"),
        (w.gguf_bytes({"general.alignment": (w.U32, 0)}, {}), "alignment is 0"),
        (w.gguf_bytes({"a": (w.ARRAY, (w.ARRAY, [(w.U8, [1])]))}, {}), "array of arrays"),
        (w.gguf_bytes({}, {"t": ((2, 48), "Q4_1", bytes(60))}), "48 are no whole Q4_1 blocks"),
        (w.gguf_bytes({}, {"t": ((), "Q8_0", b"")}), "no whole Q8_0 blocks"),
    ],
)
def test_malformed_files_are_refused(data, words):
    with pytest.raises(UserError, match=words):
        read_gguf(data)


def test_unpermute_makes_two_halves_of_neighbouring_pairs():
    heads, dim = 3, 8
    rows = np.arange(heads * dim)[:, None] * np.ones((1, 5))
    result = unpermute(rows, heads)[:, 0].astype(int)
    for head in range(heads):
        for i in range(dim // 2):
            assert result[head * dim + i] == head * dim + 2 * i
            assert result[head * dim + dim // 2 + i] == head * dim + 2 * i + 1


def test_writes_a_hugging_face_folder(rng, tmp_path):
    tensors = w.llama_tensors(rng)
    written: list[int] = []
    write_hf_folder(read_gguf(w.gguf_bytes(w.llama_metadata(), tensors)), tmp_path, written.append)
    weights = load_file(tmp_path / "model.safetensors")
    assert len(weights) == len(tensors) == len(written)
    assert sum(written) == sum(a.nbytes for a in weights.values())

    def same(hf_name: str, expected: np.ndarray) -> None:
        np.testing.assert_array_equal(weights[hf_name], expected.astype(np.float32).astype(ml_dtypes.bfloat16))

    same("model.embed_tokens.weight", w.decoded(tensors["token_embd.weight"]))
    same("model.norm.weight", w.decoded(tensors["output_norm.weight"]))
    same("model.layers.1.self_attn.v_proj.weight", w.decoded(tensors["blk.1.attn_v.weight"]))
    same("model.layers.1.post_attention_layernorm.weight", w.decoded(tensors["blk.1.ffn_norm.weight"]))
    same("model.layers.0.self_attn.q_proj.weight", unpermute(w.decoded(tensors["blk.0.attn_q.weight"]), w.HEADS))
    same("model.layers.0.self_attn.k_proj.weight", unpermute(w.decoded(tensors["blk.0.attn_k.weight"]), w.KV_HEADS))
    same("model.layers.0.mlp.down_proj.weight", w.decoded(tensors["blk.0.ffn_down.weight"]))


def test_writes_config_and_tokenizer(rng, tmp_path):
    from tokenizers import Tokenizer

    write_hf_folder(read_gguf(w.gguf_bytes(w.llama_metadata(), w.llama_tensors(rng))), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    wanted = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "vocab_size": 8, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "eos_token_id": 0,
        "bos_token_id": 1, "tie_word_embeddings": True, "max_position_embeddings": 128,
    }  # fmt: skip
    assert {key: config[key] for key in wanted} == wanted
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("abc<|start|>1 1").ids == [5, 4, 1, 7, 6, 7]
    tokenizer_config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (tokenizer_config["bos_token"], tokenizer_config["eos_token"]) == ("<|start|>", "<|end|>")
    assert tokenizer_config["chat_template"] == "{{ messages[0]['content'] }}"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"general.architecture": (w.STRING, "qwen2")}, "qwen2"),
        ({"llama.rope.scaling.type": (w.STRING, "linear")}, "llama.rope.scaling.type"),
        ({"tokenizer.ggml.model": (w.STRING, "llama")}, "tokenizer llama/smollm"),
        ({"tokenizer.ggml.add_bos_token": (w.BOOL, True)}, "adds BOS: True"),
        ({"llama.embedding_length": (w.U32, 64)}, r"shape \(8, 32\).*\(8, 64\)"),
        ({"llama.block_count": None}, "no llama.block_count"),
    ],
)
def test_what_is_no_plain_llama_is_refused(rng, tmp_path, change, words):
    metadata = {key: value for key, value in (w.llama_metadata() | change).items() if value is not None}
    with pytest.raises(UserError, match=words):
        write_hf_folder(read_gguf(w.gguf_bytes(metadata, w.llama_tensors(rng))), tmp_path)


def test_an_unknown_tensor_is_refused(rng, tmp_path):
    tensors = w.llama_tensors(rng) | {"blk.0.attn_q.bias": w.random_tensor(rng, (32,), "F32")}
    with pytest.raises(UserError, match=r"blk\.0\.attn_q\.bias has no place"):
        write_hf_folder(read_gguf(w.gguf_bytes(w.llama_metadata(), tensors)), tmp_path)
