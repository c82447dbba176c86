/* The streaming product with AVX2 vectors. */
#define STREAM_MATH_TABLE trd__stream_math_avx2
#include "backend/cpu/stream_math_body.h"
