/* The tile loops with AVX2 vectors. */
#define TILES_TABLE trd__tiles_avx2
#include "backend/cpu/tiles_body.h"
