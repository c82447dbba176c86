/* The streaming product for any processor, and the choice among the tables. */
#define STREAM_MATH_TABLE trd__stream_math_baseline
#include "backend/cpu/stream_math_body.h"

const trd__stream_math *trd__stream_math_for(trd__isa isa)
{
#if defined(__x86_64__)
    if (isa == TRD__ISA_AVX512) return &trd__stream_math_avx512;
    if (isa == TRD__ISA_AVX2) return &trd__stream_math_avx2;
#endif
    (void)isa;
    return &trd__stream_math_baseline;
}
