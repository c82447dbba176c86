/* The tile loops for any processor, and the choice among the tables. */
#define TILES_TABLE trd__tiles_baseline
#include "backend/cpu/tiles_body.h"

const trd__tiles *trd__tiles_for(trd__isa isa)
{
#if defined(__x86_64__)
    if (isa == TRD__ISA_AVX512) return &trd__tiles_avx512;
    if (isa == TRD__ISA_AVX2) return &trd__tiles_avx2;
#endif
    (void)isa;
    return &trd__tiles_baseline;
}

trd__tile_function trd__tile_find(const trd__tiles *tiles, const trd_op *op)
{
    for (const trd__tile_op *row = tiles->ops; row->op; row++)
        if (row->op == op) return row->run;
    return NULL;
}
