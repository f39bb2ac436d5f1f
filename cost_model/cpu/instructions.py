"""Instruction counts of operations in the emitted code, in slots of the FMA pipes unless stated otherwise."""

from __future__ import annotations

# Vector instructions (slots of the FMA pipes) per element operation; functions are polynomials of this length.
OP_SLOTS: dict[str, float] = {
    "float_mad": 1.0, "float_addsub": 1.0, "float_mul": 1.0, "float_divmod": 8.0, "float_cmp": 1.0, "float_math": 16.0,
    "float_other": 1.0, "int_mad": 2.0, "int_addsub": 0.5, "int_mul": 1.0, "int_divmod": 20.0, "int_cmp": 0.5,
    "int_math": 1.0, "int_other": 0.5, "bool_op": 0.5, "select_op": 1.0,
}  # fmt: skip
# Slots of a function beyond "float_math" of the table above.
CALL_SLOTS: dict[str, float] = {
    "exp": 12, "exp_negative": 12, "log": 16, "tanh": 20, "erf": 20, "sigmoid": 18, "sin": 20, "cos": 20, "sqrt": 10,
    "rsqrt": 8, "pow": 40, "fmod": 14,
}  # fmt: skip

# Slots of an unsigned integer, by its bits, divided by a constant that is no power of two: a product's upper half and
# shifts. Measured on Zen 4, vectors of 512 bits, beside chains of multiply-adds.
DIVISION_SLOTS: dict[int, float] = {8: 7.0, 16: 2.0, 32: 5.0, 64: 21.0}
SIGNED_DIVISION, REMAINDER = 1.6, 1.8  # times as many for a signed integer, and for the remainder

# Slots of an instruction that multiplies and adds up words (`dots.py`), in full-width instructions of the FMA pipes.
DOT_SLOTS: dict[str, float] = {
    "vdpbf16ps": 1.0, "vpdpbusd": 1.0, "vpdpbusd.signed": 1.5, "vpdpbusd.unsigned": 1.5,
    "vpdpwssd": 1.0,
    "vpmaddwd": 1.0, "vpmaddwd.signed": 1.0, "vpmaddwd.unsigned": 1.0,  # the additions are on other pipes
    # of vectors; in tiles they are counted by `tile_products.py`
    "tdpbusd": 1.0, "tdpbssd": 12.0, "tdpbsud": 12.0, "tdpbuud": 12.0, "tdpbf16ps": 8.0,
    "dp4a": 2.0, "dp4a.signed": 2.0, "dp4a.unsigned": 2.0,  # of GPUs
}  # fmt: skip
WORD_PART_SLOTS = 1.5  # of a word that is put together: a part widened, shifted, combined

ACROSS = 1.6  # load slots of a piece of what is transposed in registers, its share of the shuffles with it
TESTS = 18.0  # more instructions for a read in a register tile at a border: its conditions, the choice of an address
# Registers of a function's polynomial: values of each vector, and constants of all. Measured on Zen 4 with 16 registers
# of 256 bits: GELU in blocks of 4 and 8 vectors takes 1.06 and 1.17 times as long as in blocks of 1.
POLYNOMIAL_VALUES, POLYNOMIAL_CONSTANTS = 4.0, 2.0
