/* The tile loops with AVX-512 vectors. */
#define TILES_TABLE trd__tiles_avx512
#include "backend/cpu/tiles_body.h"
