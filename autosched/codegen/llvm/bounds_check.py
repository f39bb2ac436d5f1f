"""Bounds checks of indices in the entry of a network: 16 at a time, then one by one up to the first one outside.

    i1 @has_index_outside.DTYPE(ptr ids, i64 n, i64 stride, i64 low, i64 span, i64 number, ptr report)

An index is outside unless index - low, as a number without a sign, is at most the span. Of one that is, `report` gets
the number of the check and the index.
"""

from __future__ import annotations

from string import Template

from autosched.ir.dtype import DTYPES

LANES = 16
_CODE = """
define internal i1 @has_index_outside.$dtype(
  ptr %ids, i64 %n, i64 %stride, i64 %low, i64 %span, i64 %number, ptr %report
) #0 {
entry:
  %low.0 = insertelement <$lanes x i64> poison, i64 %low, i64 0
  %lows = shufflevector <$lanes x i64> %low.0, <$lanes x i64> poison, <$lanes x i32> zeroinitializer
  %span.0 = insertelement <$lanes x i64> poison, i64 %span, i64 0
  %spans = shufflevector <$lanes x i64> %span.0, <$lanes x i64> poison, <$lanes x i32> zeroinitializer
  %whole = and i64 %n, -$lanes
  %is.dense = icmp eq i64 %stride, 1
  %has.vectors = icmp ne i64 %whole, 0
  %is.wide = and i1 %is.dense, %has.vectors
  br i1 %is.wide, label %vector, label %rest
vector:
  %i = phi i64 [ 0, %entry ], [ %i1, %clean ]
  %vector.at = getelementptr $type, ptr %ids, i64 %i
  %read = load <$lanes x $type>, ptr %vector.at, align $bytes
  %indices = $widened
  %above = sub <$lanes x i64> %indices, %lows
  %are.outside = icmp ugt <$lanes x i64> %above, %spans
  %mask = bitcast <$lanes x i1> %are.outside to i$lanes
  %is.clean = icmp eq i$lanes %mask, 0
  br i1 %is.clean, label %clean, label %rest
clean:
  %i1 = add i64 %i, $lanes
  %has.more = icmp ult i64 %i1, %whole
  br i1 %has.more, label %vector, label %rest
rest:
  %start = phi i64 [ 0, %entry ], [ %i, %vector ], [ %i1, %clean ]
  br label %next
next:
  %k = phi i64 [ %start, %rest ], [ %k1, %inside ]
  %is.left = icmp ult i64 %k, %n
  br i1 %is.left, label %one, label %none
one:
  %place = mul i64 %k, %stride
  %one.at = getelementptr $type, ptr %ids, i64 %place
  %one.read = load $type, ptr %one.at, align $bytes
  %index = $one_widened
  %one.above = sub i64 %index, %low
  %is.outside = icmp ugt i64 %one.above, %span
  br i1 %is.outside, label %found, label %inside
inside:
  %k1 = add i64 %k, 1
  br label %next
found:
  store i64 %number, ptr %report, align 8
  %index.at = getelementptr i64, ptr %report, i64 1
  store i64 %index, ptr %index.at, align 8
  ret i1 true
none:
  ret i1 false
}
"""


def bounds_check_ir(dtype: str) -> str:
    """The function of one type of indices."""
    row = DTYPES[dtype]
    kind = f"i{row.bits}"
    return Template(_CODE).substitute(
        dtype=dtype,
        type=kind,
        bytes=row.nbytes,
        lanes=LANES,
        widened=_widened("%read", f"<{LANES} x {kind}>", f"<{LANES} x i64>", dtype),
        one_widened=_widened("%one.read", kind, "i64", dtype),
    )


def _widened(value: str, narrow: str, wide: str, dtype: str) -> str:
    if narrow == wide:
        return f"freeze {wide} {value}"
    return f"{'zext' if DTYPES[dtype].kind == 'u' else 'sext'} {narrow} {value} to {wide}"
