/* Dimensions of an rms_norm node, shared by its kernels. */
#ifndef TRD_BACKEND_CPU_RMS_NORM_H
#define TRD_BACKEND_CPU_RMS_NORM_H

#include "backend/cpu/kernel.h"

typedef struct trd__norm_dims {
    int64_t rows, channels;
    double eps;
    trd_dtype dtype, scale_dtype; /* x's (y, d_y and d_x have it too) and scale's */
} trd__norm_dims;

trd__norm_dims trd__norm_dims_of(const trd_node *n);

extern const trd__cpu_kernel trd__rms_norm_rows, trd__rms_norm_grad_rows;

#endif
