/* The row loops with AVX2 vectors. */
#define ROW_MATH_TABLE trd__row_math_avx2
#include "backend/cpu/row_math_body.h"
