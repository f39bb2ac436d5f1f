// CacheWrite C
// Bind C i.0 blockIdx.x
// launch kernel_0(A, B, C): grid (2, 1, 1), block (4, 1, 1), 12 shared bytes
// launch kernel_1(C, D): grid (1, 1, 1), block (1, 1, 1), 0 shared bytes
#pragma OPENCL FP_CONTRACT ON

float max_float(float a, float b) { return a > b || a != a ? a : b; }

__kernel __attribute__((reqd_work_group_size(4, 1, 1))) void kernel_0(__global const float* restrict A, __global const float* restrict B, __global float* restrict C)
{
  __local float scale[3];
  const int b = get_group_id(0);
  const int t = get_local_id(0);
  float sum[1];
  sum[0] = 0.0f;
  if (t < 3) {
    scale[t] = B[t];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (b * 4 + t < 7) {
    #pragma unroll
    for (int k = 0; k < 3; ++k) {
      sum[0] += A[b * 12 + k + t * 3] * scale[k];
    }
  }
  if (b * 4 + t < 7) {
    C[b * 4 + t] = sum[0];
  }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void kernel_1(__global const float* restrict C, __global float* restrict D)
{
  D[0] = -INFINITY;
  for (int k = 0; k < 7; ++k) {
    D[0] = max_float(D[0], C[k]);
  }
}
