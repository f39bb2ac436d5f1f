"""Identifiers of the generated C, the user's names where C allows them, and the text of a function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


def identifier(name: str, taken: set[str]) -> str:
    """Return an unused C identifier like `name`, and add it to `taken`."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    base = base if re.match(r"[A-Za-z]", base) and not base.startswith(RESERVED_PREFIXES) else f"v{base}"
    candidate, n = base, 1
    while candidate in taken:
        n += 1
        candidate = f"{base}_{n}"
    taken.add(candidate)
    return candidate


# Keywords, functions and macros of C, C++ and OpenCL, and of the generated text: no names for a user's tensors.
RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto barrier bitand bitor bool break case catch char class compl concept const
    constant constexpr continue decltype default delete do double else enum event_t explicit export extern false float
    for friend generic global goto half if image2d_t inline int kernel linux local long mutable namespace new noexcept
    not not_eq nullptr operator or or_eq pipe private protected public ptrdiff_t register reinterpret_cast requires
    restrict return sampler_t short signed size_t sizeof static static_cast struct switch template this thread_local
    throw true try typedef typeid typename uchar uint ulong union unix unsigned ushort using virtual void volatile
    while xor xor_eq
    EOF INFINITY NAN NULL blockDim blockIdx gridDim threadIdx warpSize get_group_id get_local_id
    abs ceil cos erf exp fabs floor fma fmod log max min pow rint rsqrt sin sqrt tanh
    cosf erff expf fabsf floorf ceilf fmaf fmodf logf powf rintf rsqrtf sinf sqrtf tanhf
    make_float2 make_float4 float2 float4 make_int2 make_int4 int2 int4 make_double2 double2
    vload2 vload4 vload8 vload16 vstore2 vstore4 vstore8 vstore16 vload_half vstore_half_rte as_float as_uint
    dot_int8_int8 dot_uint8_int8 dot_uint8_uint8 as_int as_char4 as_uchar4
    uint2 uint4 make_uint2 make_uint4 longlong2 make_longlong2 ulonglong2 make_ulonglong2 long2 ulong2
    char4 char8 char16 uchar4 uchar8 uchar16
    short2 short4 short8 ushort2 ushort4 ushort8
    float32_of_float16 float16_of_float32 float32_of_bfloat16 bfloat16_of_float32
    float16_pair_of_float32 bfloat16_pair_of_float32
    start_copy_float start_copy_float2 start_copy_float4 start_copy_double start_copy_int start_copy_long_long
    start_copy_longlong2 start_copy_unsigned start_copy_uint2 start_copy_uint4
    commit_copies wait_for_all_copies_but_0 wait_for_all_copies_but_1 wait_for_all_copies_but_2
    wait_for_all_copies_but_3 wait_for_all_copies_but_4 wait_for_all_copies_but_5 wait_for_all_copies_but_6
    min_float max_float min_double max_double pow_int pow_long pow_long_long pow_char pow_signed_char pow_uchar
    pow_unsigned_char atomicAdd atomicMin atomicMax atomic_add atomic_min atomic_max atomic_add_float atomic_add_double
    atomic_add_long atomic_min_long atomic_max_long
    load_rows_2 load_rows_4 load_columns_2 load_columns_4 multiply_matrices_float16 multiply_matrices_bfloat16
    multiply_matrices_int8 multiply_matrices_uint8
    TensorMap matrix_descriptor start_barrier show_barriers expect_bytes arrive has_passed begin_products
    commit_products wait_for_all_products_but_0 wait_for_all_products_but_1 load_tile_1 load_tile_2 load_tile_3
    load_tile_4 load_tile_5 store_tile_1 store_tile_2 store_tile_3 store_tile_4 store_tile_5 show_to_engine
    commit_stores wait_for_stores meet_1 meet_2 meet_3 keep_float keep_int
    start_next_kernel wait_for_kernels_before arrive_elsewhere arrive_at_cluster wait_for_cluster in_block
    take_turn give_turn sizes_of_call
    load_tile_1_for_all load_tile_2_for_all load_tile_3_for_all load_tile_4_for_all load_tile_5_for_all
    load_pixels_3_for_all load_pixels_4_for_all load_pixels_5_for_all
    """.split()  # noqa: SIM905
)


RESERVED_PREFIXES = (
    "multiply_tiles_",
    "take_registers_",
    "give_registers_",
    "size_of_call_",
)  # of generated functions and variables with numbers in their names


@dataclass
class Text:
    """The lines of a function's body, and the identifiers `taken` in it."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1
    taken: set[str] = field(default_factory=lambda: set(RESERVED))

    def name(self, like: str) -> str:
        return identifier(like, self.taken)

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        """Put the lines emitted inside between braces, after `head`."""
        self.line(f"{head} {{" if head else "{")
        with self.indented():
            yield
        self.line("}")
