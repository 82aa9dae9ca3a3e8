// Notes when every kernel and copy of a program began and ended on the GPU, without changing the program: a library that the driver
// loads into it (CUDA_INJECTION64_PATH). Needs CUPTI and CUDA's headers, of CUDA or from PyPI (nvidia-cuda-cupti, nvidia-cuda-runtime,
// nvidia-cuda-crt), of a version that the driver knows. Runs take as long as without.
//
//   gcc -shared -fPIC -O1 -I INCLUDE runs/gpu_trace.c -o gpu_trace.so -L LIB -l:libcupti.so.13 -Wl,-rpath,'$ORIGIN'
//   CUDA_INJECTION64_PATH=$PWD/gpu_trace.so TRACE_OUT=trace.txt latent-tts bench --device cuda --questions 64 --samples 64 --repeat 8
//   python3 runs/gpu_trace.py trace.txt
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

static FILE* out;

static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
    *size = 8 << 20;
    *buffer = aligned_alloc(8, *size);
    *most_records = 0;
}

static void line(uint64_t start, uint64_t end, const char* name) {
    fprintf(out, "%llu %llu %s\n", (unsigned long long)start, (unsigned long long)end, name);
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid) {
    CUpti_Activity* record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel9* kernel = (const CUpti_ActivityKernel9*)record;
            line(kernel->start, kernel->end, kernel->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy5* copy = (const CUpti_ActivityMemcpy5*)record;
            line(copy->start, copy->end, "copy");
        }
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

int InitializeInjection(void) {
    const char* path = getenv("TRACE_OUT");
    out = fopen(path ? path : "trace.txt", "w");
    if (!out) return 0;
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    atexit(finish);
    return 1;
}
