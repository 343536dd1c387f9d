// Matrix multiplication with tiles in shared memory, against a kernel without tiles, and compared with the CPU's result.
//
//   nvcc -O2 -o matrix_multiply matrix_multiply.cu && ./matrix_multiply [ROWS INNER COLUMNS]
//
// Without arguments 8 x 8 times 8 x 8. Sizes need not be multiples of the tile. Exit code 1: the results differ.
//
// A block computes one tile of the result. It slides along the inner dimension: its threads load one tile of A and one of B
// together, one element each, and every element that was loaded is then used TILE times. A thread of the kernel without tiles
// reads both operands of each product from global memory, so it reads TILE times as much.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define TILE 16
#define CHECK(call)                                                                        \
  do {                                                                                     \
    cudaError_t error_ = (call);                                                           \
    if (error_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_)); \
      std::exit(2);                                                                        \
    }                                                                                      \
  } while (0)

__global__ void multiply_naive(const float *a, const float *b, float *out, int rows, int inner, int columns) {
  int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  if (row >= rows || column >= columns) return;
  float sum = 0;
  for (int k = 0; k < inner; k++) sum += a[(size_t)row * inner + k] * b[(size_t)k * columns + column];
  out[(size_t)row * columns + column] = sum;
}

__global__ void multiply_tiled(const float *a, const float *b, float *out, int rows, int inner, int columns) {
  __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
  float sum = 0;
  for (int first = 0; first < inner; first += TILE) {
    // Outside of the matrices there is zero, which adds nothing. All threads take part, also those without an element.
    tile_a[y][x] = row < rows && first + x < inner ? a[(size_t)row * inner + first + x] : 0;
    tile_b[y][x] = column < columns && first + y < inner ? b[(size_t)(first + y) * columns + column] : 0;
    __syncthreads();
    for (int k = 0; k < TILE; k++) sum += tile_a[y][k] * tile_b[k][x];
    __syncthreads();
  }
  if (row < rows && column < columns) out[(size_t)row * columns + column] = sum;
}

typedef void (*Kernel)(const float *, const float *, float *, int, int, int);

static float run(Kernel kernel, const float *a, const float *b, float *out, int rows, int inner, int columns) {
  dim3 block(TILE, TILE), grid((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  kernel<<<grid, block>>>(a, b, out, rows, inner, columns);  // the first one also loads the kernel
  CHECK(cudaEventRecord(start));
  kernel<<<grid, block>>>(a, b, out, rows, inner, columns);
  CHECK(cudaEventRecord(stop));
  CHECK(cudaGetLastError());
  CHECK(cudaEventSynchronize(stop));
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(stop));
  return milliseconds;
}

static size_t differences(const std::vector<float> &found, const std::vector<double> &expected) {
  size_t wrong = 0;
  for (size_t at = 0; at < found.size(); at++)
    wrong += !(std::fabs(found[at] - expected[at]) <= 1e-4 * (1 + std::fabs(expected[at])));
  return wrong;
}

int main(int argc, char **argv) {
  int rows = argc > 3 ? std::atoi(argv[1]) : 8, inner = argc > 3 ? std::atoi(argv[2]) : 8;
  int columns = argc > 3 ? std::atoi(argv[3]) : 8;
  if (rows < 1 || inner < 1 || columns < 1) {
    std::fprintf(stderr, "usage: %s [ROWS INNER COLUMNS]\n", argv[0]);
    return 2;
  }
  std::vector<float> a((size_t)rows * inner), b((size_t)inner * columns), out((size_t)rows * columns);
  for (size_t at = 0; at < a.size(); at++) a[at] = (float)(at % 17 + 1) / 8;
  for (size_t at = 0; at < b.size(); at++) b[at] = (float)(at % 13 + 1) / 8;
  std::vector<double> expected(out.size(), 0.0);
  for (int row = 0; row < rows; row++)
    for (int k = 0; k < inner; k++)
      for (int column = 0; column < columns; column++)
        expected[(size_t)row * columns + column] += (double)a[(size_t)row * inner + k] * b[(size_t)k * columns + column];

  float *da, *db, *dout;
  CHECK(cudaMalloc(&da, a.size() * sizeof(float)));
  CHECK(cudaMalloc(&db, b.size() * sizeof(float)));
  CHECK(cudaMalloc(&dout, out.size() * sizeof(float)));
  CHECK(cudaMemcpy(da, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));
  size_t wrong = 0;
  const char *names[] = {"naive", "tiled"};
  Kernel kernels[] = {multiply_naive, multiply_tiled};
  for (int which = 0; which < 2; which++) {
    CHECK(cudaMemset(dout, 0, out.size() * sizeof(float)));
    float milliseconds = run(kernels[which], da, db, dout, rows, inner, columns);
    CHECK(cudaMemcpy(out.data(), dout, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
    size_t differ = differences(out, expected);
    double gflops = 2.0 * rows * inner * columns / (milliseconds * 1e6);
    std::printf("%s: %d x %d x %d in %.3f ms (%.1f GFLOP/s), %zu elements differ from the CPU's result\n", names[which],
                rows, inner, columns, milliseconds, gflops, differ);
    wrong += differ;
  }
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
  CHECK(cudaFree(dout));
  return wrong ? 1 : 0;
}
