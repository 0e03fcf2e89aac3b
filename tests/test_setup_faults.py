"""Faults of what stands before a kernel, planted one by one: the named test must notice (`-m deep`)."""

from __future__ import annotations

import pytest

from tests.engine.planting import Fault, check_found, check_unplanted

CUPY, DOCTOR, PACKAGES = "device/cupy_setup.py", "doctor/cuda.py", "doctor/cupy_packages.py"
CACHE, BUILD, SIGNATURE = "cache.py", "device/emulator/build.py", "device/signature.py"
STREAM, CONFIG = "device/emulator/stream.py", "models/config.py"
BY_SETUP, BY_DOCTOR, BY_CACHE = "device/test_get_device.py", "test_doctor.py", "test_cache.py"
BY_BUILD, BY_SIGNATURE, BY_DEVICE = (
    "device/test_emulator_cache.py",
    "device/test_signature.py",
    "device/test_device.py",
)
BY_CONFIG, BY_LLM = "models/test_config.py", "test_llm.py"

FAULTS = [
    Fault(
        "missing headers are not noticed",
        CUPY,
        "    if missing:\n",
        "    if False:\n",
        BY_SETUP,
        "test_missing_headers",
    ),
    Fault(
        "headers of another CUDA are taken",
        CUPY,
        "if headers // 1000 != major:",
        "if False:",
        BY_SETUP,
        "test_headers_of_another_version_name_both",
    ),
    Fault(
        "doctor does not look for vector_types.h",
        DOCTOR,
        'HEADERS = ("vector_types.h", ',
        "HEADERS = (",
        BY_DOCTOR,
        "test_a_header_that_is_missing",
    ),
    Fault(
        "doctor does not see half-precision headers of two CUDAs",
        DOCTOR,
        "_core/include/cupy/_cuda/cuda-*/cuda_fp16.h*",
        "_core/include/cuda-*/cuda_fp16.h*",
        BY_DOCTOR,
        "test_half_precision_headers_of_two_cudas",
    ),
    Fault(
        "a conda environment counts as activated",
        CUPY,
        ' and not os.environ.get("CONDA_PREFIX"):',
        ' and os.environ.get("CONDA_PREFIX"):',
        BY_DOCTOR,
        "test_cupy_that_fails_for_want_of_conda_prefix",
    ),
    Fault(
        "two packages of CuPy may stand side by side",
        PACKAGES,
        "if len(packages) > 1:",
        "if len(packages) > 2:",
        BY_DOCTOR,
        "test_cupy_packages",
    ),
    Fault(
        "CuPy 14.1.0 passes",
        PACKAGES,
        "if numbers == (14, 1, 0):",
        "if numbers == (14, 1, 9):",
        BY_DOCTOR,
        "test_cupy_packages",
    ),
    Fault(
        "packages of another CUDA pass",
        PACKAGES,
        "if not others:",
        "if True:",
        BY_DOCTOR,
        "test_cupy_beside_a_cuda_core_of_another_cuda",
    ),
    Fault(
        "a folder that cannot be written ends the run",
        CACHE,
        "    except OSError:\n        folder = _temporary_root()",
        "    except KeyError:\n        folder = _temporary_root()",
        BY_CACHE,
        "test_one_private_stand_in_and_one_warning",
    ),
    Fault(
        "CuPy's cache stays where it cannot be written to",
        CUPY,
        "    if _is_writable(folder):\n",
        "    if True:\n",
        BY_SETUP,
        "test_a_cache_that_cannot_be_written_to_moves_with_one_warning",
    ),
    Fault(
        "half a library is loaded",
        BUILD,
        "        if _is_whole(library):\n",
        "        if True:\n",
        BY_BUILD,
        "test_half_a_library_is_compiled_again",
    ),
    Fault(
        "each process keeps a library of its own",
        BUILD,
        'library = cache / f"{key}-{_digest(result)}.so"',
        'library = cache / f"{key}-{os.getpid()}.so"',
        BY_BUILD,
        "test_eight_processes_at_once",
    ),
    Fault(
        "an array of another type passes",
        SIGNATURE,
        "        if wanted is not None and array.dtype != wanted:\n",
        "        if False:\n",
        BY_SIGNATURE,
        "test_wrong_arrays",
    ),
    Fault(
        "strides are ignored",
        SIGNATURE,
        "        if not array.flags.c_contiguous:\n",
        "        if False:\n",
        BY_SIGNATURE,
        "test_wrong_arrays",
    ),
    Fault(
        "an allocation in a capture passes",
        STREAM,
        "        self.forbid_in_capture(what)\n        if self._no_allocation:",
        "        if self._no_allocation:",
        BY_DEVICE,
        "test_an_allocation_in_a_capture_is_the_first_cause",
    ),
    Fault(
        "a stream goes on capturing after an error",
        STREAM,
        "        finally:\n            self._graph, self._failure = None, None",
        "        else:\n            self._graph, self._failure = None, None",
        BY_DEVICE,
        "test_an_allocation_in_a_capture_is_the_first_cause",
    ),
    Fault(
        "close() keeps the runner",
        "engine/llm_engine.py",
        "        self._parts = self._in_flight = None\n        self._groups, self",
        "        self._kept, self._parts = self._parts, None\n        self._groups, self",
        BY_LLM,
        "test_close_gives_the_memory_back_and_ends_use",
    ),
    Fault(
        "a kernel's module is never unloaded",
        "device/emulator/workers.py",
        "    weakref.finalize(loaded, _ctypes.dlclose, loaded._handle).atexit = False\n",
        "",
        "device/test_emulator_copies.py",
        "test_a_module_is_unloaded_with_its_last_kernel",
    ),
    Fault(
        "biases of q, k and v are left out",
        CONFIG,
        '    "attention_bias": False,\n',
        "",
        BY_CONFIG,
        "test_refused_by_name",
    ),
]
ON_A_GPU = [
    Fault(
        "a failed capture is not ended",
        "device/cuda.py",
        "                self._abandon_capture()\n",
        "                pass\n",
        "device/test_cuda.py",
        "test_whatever_fails_in_a_capture_is_the_first_cause",
    ),
    Fault(
        "an allocation in a capture passes on a GPU",
        "device/cuda.py",
        "with self.stream, self.no_allocation():",
        "with self.stream:",
        "device/test_cuda.py",
        "test_memory_is_flat_after_failed_captures",
    ),
]


@pytest.mark.deep
@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_a_copy_without_a_fault_passes(file, tmp_path, request):
    check_unplanted(tmp_path, FAULTS, file, request.config.getoption("--device"))


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault, tmp_path, request):
    check_found(tmp_path, fault, request.config.getoption("--device"))


@pytest.mark.deep
@pytest.mark.parametrize("fault", ON_A_GPU, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_on_a_gpu(fault, tmp_path, device):
    if device.name != "cuda":
        pytest.skip("its test runs on a GPU only")
    check_found(tmp_path, fault, "cuda")
