/* What instruction sets this processor has and the operating system saves. */
#include "backend/cpu/kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* The register sets that the system saves on a context switch (XCR0). */
static unsigned saved_state(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

trd__isa trd__cpu_detect(void)
{
    enum { YMM = 0x6, ZMM = 0xe6 };
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return TRD__ISA_BASELINE;
    bool system_saves = (c & bit_OSXSAVE) && (c & bit_AVX);
    bool fma = (c & bit_FMA) && (c & bit_F16C);
    if (!system_saves || !fma || (saved_state() & YMM) != YMM) return TRD__ISA_BASELINE;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return TRD__ISA_BASELINE;
    unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return (b & avx512) == avx512 && (saved_state() & ZMM) == ZMM ? TRD__ISA_AVX512 : TRD__ISA_AVX2;
}

/* Whether the system lends out AMX's tiles is the product library's to ask. */
bool trd__cpu_has_bf16(void)
{
    enum { AMX_BF16 = 1 << 22, AVX512_BF16 = 1 << 5 }; /* leaf 7: edx of subleaf 0, eax of subleaf 1 */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (d & AMX_BF16) return true;
    return a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}
#else
trd__isa trd__cpu_detect(void)
{
    return TRD__ISA_BASELINE;
}

bool trd__cpu_has_bf16(void)
{
    return false;
}
#endif
