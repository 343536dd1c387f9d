// Matrix addition: one GPU thread for each element. The result is compared with the CPU's.
//
//   nvcc -O2 -o matrix_add matrix_add.cu && ./matrix_add [ROWS] [COLUMNS]
//
// Without arguments 8 x 8, and the matrices are printed. Exit code 1: the results differ.

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                        \
  do {                                                                                     \
    cudaError_t error_ = (call);                                                           \
    if (error_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_)); \
      std::exit(2);                                                                        \
    }                                                                                      \
  } while (0)

__global__ void add(const float *a, const float *b, float *sum, int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  // The grid is made of whole blocks and may be larger than the matrix.
  if (row < rows && column < columns) {
    int at = row * columns + column;
    sum[at] = a[at] + b[at];
  }
}

static void print(const char *name, const std::vector<float> &values, int rows, int columns) {
  std::printf("%s\n", name);
  for (int row = 0; row < rows; row++) {
    for (int column = 0; column < columns; column++) std::printf("%5.0f", values[row * columns + column]);
    std::printf("\n");
  }
}

int main(int argc, char **argv) {
  int rows = argc > 1 ? std::atoi(argv[1]) : 8;
  int columns = argc > 2 ? std::atoi(argv[2]) : rows;
  if (rows < 1 || columns < 1) {
    std::fprintf(stderr, "usage: %s [ROWS] [COLUMNS]\n", argv[0]);
    return 2;
  }
  size_t count = (size_t)rows * columns, bytes = count * sizeof(float);
  std::vector<float> a(count), b(count), sum(count);
  for (int row = 0; row < rows; row++) {
    for (int column = 0; column < columns; column++) {
      a[(size_t)row * columns + column] = row * columns + column + 1;
      b[(size_t)row * columns + column] = column * rows + row + 1;
    }
  }

  float *da, *db, *dsum;
  CHECK(cudaMalloc(&da, bytes));
  CHECK(cudaMalloc(&db, bytes));
  CHECK(cudaMalloc(&dsum, bytes));
  CHECK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
  dim3 block(8, 8);
  dim3 grid((columns + block.x - 1) / block.x, (rows + block.y - 1) / block.y);
  add<<<grid, block>>>(da, db, dsum, rows, columns);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(sum.data(), dsum, bytes, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
  CHECK(cudaFree(dsum));

  if (argc == 1) {
    print("A", a, rows, columns);
    print("B", b, rows, columns);
    print("A + B", sum, rows, columns);
  }
  size_t wrong = 0;
  for (size_t at = 0; at < count; at++) wrong += sum[at] != a[at] + b[at];
  std::printf("%d x %d: %zu elements differ from the CPU's result\n", rows, columns, wrong);
  return wrong ? 1 : 0;
}
