/* The row loops with AVX-512 vectors. */
#define ROW_MATH_TABLE trd__row_math_avx512
#include "backend/cpu/row_math_body.h"
