/* The streaming product with AVX-512 vectors. */
#define STREAM_MATH_TABLE trd__stream_math_avx512
#include "backend/cpu/stream_math_body.h"
