// Adds two vectors on the GPU and compares with the CPU. Prints the number of GPUs and "ok".
#include <cstdio>
#include <vector>

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main() {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) {
        std::printf("gpus 0 %s\n", cudaGetErrorString(status));
        return 3;
    }
    const int n = 1 << 20;
    std::vector<float> a(n), b(n), c(n);
    for (int i = 0; i < n; i++) { a[i] = i; b[i] = 0.5f * i; }
    float *da, *db, *dc;
    cudaMalloc(&da, n * 4); cudaMalloc(&db, n * 4); cudaMalloc(&dc, n * 4);
    cudaMemcpy(da, a.data(), n * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(db, b.data(), n * 4, cudaMemcpyHostToDevice);
    add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
    status = cudaMemcpy(c.data(), dc, n * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < n && status == cudaSuccess; i++)
        if (c[i] != a[i] + b[i]) { std::printf("wrong at %d\n", i); return 1; }
    std::printf("gpus %d %s\n", count, status == cudaSuccess ? "ok" : cudaGetErrorString(status));
    return status == cudaSuccess ? 0 : 2;
}
