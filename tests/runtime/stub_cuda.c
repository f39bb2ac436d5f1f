/* A stand-in for libcuda.so.1 in host memory: enough of the CUDA driver API to see that the driver above it marshals
   its arguments as the API wants them. One kernel, `add`: C[i] = A[i] + B[i] for each thread of the launch; `mapped` does so by tensor maps. A kernel
   `illegal` makes the context sticky. Every launch is written to stderr. Compiled by test_gpu_cuda.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *Handle;
typedef uint64_t CUdeviceptr;
#define CALL __attribute__((visibility("default"))) CUresult

static CUresult sticky = 0;
static int capturing = 0;
static double milliseconds = 0;
static size_t used = 0;
#define TOTAL ((size_t)1 << 30)

typedef struct {
  int kind;
  float *a, *b, *c;
  int n;
} Node;
typedef struct {
  Node nodes[4096];
  int n;
} Graph;
static Graph *recording = 0;
typedef struct {
  double at;
  int id;
} Event;
static int events = 0;

static void execute(Node node) {
  milliseconds += 0.01;
  for (int i = 0; i < node.n; ++i) node.c[i] = node.a[i] + node.b[i];
}

CALL cuInit(unsigned flags) { return getenv("STUB_NO_DEVICE") ? 100 : 0; }
CALL cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CALL cuDeviceGetCount(int *n) { *n = 1; return 0; }
CALL cuDeviceGet(CUdevice *d, int i) { *d = i; return 0; }
CALL cuDeviceGetName(char *name, int n, CUdevice d) { snprintf(name, n, "stub device"); return 0; }
CALL cuDeviceGetAttribute(int *v, int what, CUdevice d) {
  switch (what) {
    case 1: *v = 1024; break;
    case 5: *v = 2147483647; break;
    case 6: case 7: *v = 65535; break;
    case 8: *v = 49152; break;
    case 10: *v = 32; break;
    case 13: *v = 1980000; break;
    case 16: *v = 132; break;
    case 36: *v = 3201000; break;
    case 37: *v = 6144; break;
    case 38: *v = 52428800; break;
    case 39: *v = 2048; break;
    case 75: *v = 9; break;
    case 76: *v = 0; break;
    case 81: *v = 233472; break;
    case 82: *v = 65536; break;
    case 97: *v = 232448; break;
    default: return 1;
  }
  return 0;
}
CALL cuDevicePrimaryCtxRetain(Handle *c, CUdevice d) { *c = (Handle)0x10; return 0; }
CALL cuDevicePrimaryCtxRelease_v2(CUdevice d) { return 0; }
CALL cuDevicePrimaryCtxRelease(CUdevice d) { return 0; }
static Handle contexts[16] = {0};
static int depth = 0;
#define OURS if (contexts[depth] != (Handle)0x10) return 201;
CALL cuCtxSetCurrent(Handle c) { contexts[depth] = c; return 0; }
CALL cuCtxGetCurrent(Handle *c) { *c = contexts[depth]; return 0; }
CALL cuCtxPushCurrent_v2(Handle c) { contexts[++depth] = c; return 0; }
CALL cuCtxPopCurrent_v2(Handle *c) { *c = contexts[depth--]; return sticky; }
CALL cuStreamCreate(Handle *s, unsigned flags) { *s = (Handle)0x20; return flags == 1 ? 0 : 1; }
CALL cuStreamDestroy_v2(Handle s) { return 0; }
CALL cuStreamSynchronize(Handle s) { fprintf(stderr, "synchronise %p\n", s); return sticky; }
CALL cuEventCreate(Handle *e, unsigned flags) {
  *e = calloc(1, sizeof(Event));
  ((Event *)*e)->id = ++events;
  return 0;
}
CALL cuEventDestroy_v2(Handle e) { free(e); return 0; }
CALL cuEventRecord(Handle e, Handle s) {
  fprintf(stderr, "record %d %p\n", ((Event *)e)->id, s);
  ((Event *)e)->at = milliseconds;
  return sticky;
}
CALL cuStreamWaitEvent(Handle s, Handle e, unsigned flags) {
  fprintf(stderr, "wait %d %p\n", ((Event *)e)->id, s);
  return sticky;
}
CALL cuEventSynchronize(Handle e) { return sticky; }
static CUresult elapsed(float *t, Handle a, Handle b) { *t = ((Event *)b)->at - ((Event *)a)->at; return sticky; }
CALL cuEventElapsedTime(float *t, Handle a, Handle b) { return elapsed(t, a, b); }
CALL cuEventElapsedTime_v2(float *t, Handle a, Handle b) { return elapsed(t, a, b); }
CALL cuMemGetInfo_v2(size_t *f, size_t *t) { *f = TOTAL - used; *t = TOTAL; return sticky; }
CALL cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
  OURS
  if (n > TOTAL - used) return 2;
  size_t *block = aligned_alloc(512, (n + 1023) / 512 * 512);
  block[0] = n;
  used += n;
  *p = (CUdeviceptr)block + 512;
  fprintf(stderr, "allocate %zu\n", n);
  return sticky;
}
CALL cuMemFree_v2(CUdeviceptr p) {
  OURS
  size_t *block = (size_t *)(p - 512);
  used -= block[0];
  fprintf(stderr, "free %zu\n", block[0]);
  free(block);
  return sticky;
}
CALL cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void *h, size_t n, Handle s) {
  fprintf(stderr, "upload %zu\n", n);
  memcpy((void *)d, h, n);
  return sticky;
}
CALL cuMemcpyDtoHAsync_v2(void *h, CUdeviceptr d, size_t n, Handle s) {
  fprintf(stderr, "download %zu\n", n);
  memcpy(h, (void *)d, n);
  return sticky;
}
CALL cuMemcpyDtoDAsync_v2(CUdeviceptr d, CUdeviceptr h, size_t n, Handle s) { memcpy((void *)d, (void *)h, n); return sticky; }
CALL cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, Handle s) { memset((void *)d, v, n); return sticky; }
CALL cuMemsetD16Async(CUdeviceptr d, unsigned short v, size_t n, Handle s) {
  for (size_t i = 0; i < n; ++i) ((unsigned short *)d)[i] = v;
  return sticky;
}
CALL cuModuleLoadData(Handle *m, const void *image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return 200;
  *m = (Handle)0x30;
  return sticky;
}
CALL cuModuleUnload(Handle m) { OURS fprintf(stderr, "unloaded\n"); return 0; }
CALL cuModuleGetFunction(Handle *f, Handle m, const char *name) {
  if (!strcmp(name, "add")) *f = (Handle)0x41;
  else if (!strcmp(name, "mapped")) *f = (Handle)0x43;
  else if (!strcmp(name, "illegal")) *f = (Handle)0x42;
  else return 500;
  return sticky;
}
CALL cuFuncSetAttribute(Handle f, int what, int v) { fprintf(stderr, "attribute %d %d\n", what, v); return 0; }
CALL cuLaunchKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                    unsigned shared, Handle stream, void **parameters, void **extra) {
  OURS
  fprintf(stderr, "launch %u %u %u  %u %u %u  %u  %p\n", gx, gy, gz, bx, by, bz, shared, stream);
  if (sticky) return sticky;
  if (bx * by * bz > 1024) return 1;
  if (f == (Handle)0x42) { sticky = 700; return 0; }
  Node node = {0, *(float **)parameters[0], *(float **)parameters[1], *(float **)parameters[2], gx * gy * gz * bx * by * bz};
  for (int i = 0; i < 2 && f == (Handle)0x43; ++i)
    fprintf(stderr, "map %d has %llx\n", i, ((unsigned long long *)parameters[i])[1]);
  if (recording) recording->nodes[recording->n++] = node;
  else execute(node);
  return 0;
}
static void encode(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                   const unsigned *steps, const int *modes) {
  fprintf(stderr, "encode %d of type %d, modes %d %d %d %d:", (int)((uintptr_t)map % 64), type, modes[0], modes[1], modes[2], modes[3]);
  for (unsigned d = 0; d < rank; ++d) fprintf(stderr, " %llu/%u", (unsigned long long)dims[d], steps[d]);
  for (unsigned d = 0; d + 1 < rank; ++d) fprintf(stderr, " +%llu", (unsigned long long)strides[d]);
  map[0] = (uint64_t)address;
  map[1] = 0x300000;
}
CALL cuTensorMapEncodeTiled(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                            int swizzle, int promotion, int fill) {
  encode(map, type, rank, address, dims, strides, steps, (int[]){interleave, swizzle, promotion, fill});
  for (unsigned d = 0; d < rank; ++d) fprintf(stderr, " [%u]", box[d]);
  fprintf(stderr, "\n");
  return box[0] == 13 ? 1 : 0;
}
CALL cuTensorMapEncodeIm2col(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *dims,
                             const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                             unsigned pixels, const unsigned *steps, int interleave, int swizzle, int promotion,
                             int fill) {
  encode(map, type, rank, address, dims, strides, steps, (int[]){interleave, swizzle, promotion, fill});
  fprintf(stderr, " [%d %d to %d %d] %u %u\n", lower[0], lower[1], upper[0], upper[1], channels, pixels);
  return 0;
}
typedef struct {
  int id;
  char pad[4];
  int value[16];
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  Handle stream;
  Attribute *attributes;
  unsigned n;
} Config;
CALL cuLaunchKernelEx(const Config *c, Handle f, void **parameters, void **extra) {
  fprintf(stderr, "early %d %d\n", c->attributes[0].id, c->attributes[0].value[0]);
  if (c->n != 1) return 1;
  return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                        c->stream, parameters, extra);
}
CALL cuStreamBeginCapture_v2(Handle s, int mode) { recording = calloc(1, sizeof(Graph)); return mode == 1 ? 0 : 1; }
CALL cuStreamEndCapture(Handle s, Handle *g) { *g = recording; recording = 0; return sticky; }
CALL cuGraphInstantiateWithFlags(Handle *e, Handle g, unsigned long long flags) { *e = g; return 0; }
CALL cuGraphDestroy(Handle g) { return 0; }
CALL cuGraphUpload(Handle e, Handle s) { return 0; }
CALL cuGraphExecDestroy(Handle e) { free(e); return 0; }
CALL cuGraphLaunch(Handle e, Handle s) {
  Graph *g = e;
  fprintf(stderr, "graph of %d\n", g->n);
  for (int i = 0; i < g->n; ++i) execute(g->nodes[i]);
  return sticky;
}
CALL cuGetErrorName(CUresult r, const char **s) {
  *s = r == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : r == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return 0;
}
CALL cuGetErrorString(CUresult r, const char **s) {
  *s = r == 700 ? "an illegal memory access was encountered" : r == 2 ? "out of memory" : "an error";
  return 0;
}
CALL cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
  char versioned[128];
  const char *forms[] = {"%s_v2", "%s"};
  *f = 0;
  if (!strcmp(name, "cuGraphInstantiate")) name = "cuGraphInstantiateWithFlags";
  for (int i = 0; i < 2 && !*f; ++i) {
    snprintf(versioned, sizeof versioned, forms[i], name);
    *f = dlsym(RTLD_DEFAULT, versioned);
    if (!*f) {
      void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
      if (self) *f = dlsym(self, versioned);
    }
  }
  if (status) *status = *f ? 0 : 1;
  return 0;
}
CALL cuGetProcAddress(const char *name, void **f, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, f, version, flags, 0);
}
